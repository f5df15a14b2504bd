"""The place of this process among the ranks of a run, as torchrun tells it, and the configuration of each rank.

Rank 0 is an ordinary learner: it evaluates, records, saves policies and has the run's directory. Every other rank has a
directory inside the run's directory and does none of this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from common.config.run_config import RunConfig
from common.errors import ConfigError
from common.wire.address import MOST_PORT, join_address, split_address

SEEDS_APART: Final = 1_000_000
"""The seeds of two ranks differ by this: a rank has fewer environments, each of which takes the next seed."""

METRICS_APART: Final = 2
"""The metrics ports of two ranks on a host differ by this: that of ingest follows that of the trainer."""
RANKS: Final = "WORLD_SIZE"
"""The variable of torchrun that tells how many ranks there are."""
BY_TORCHRUN: Final = "TORCHELASTIC_RUN_ID"
"""The variable that torchrun always sets, and a user who starts each rank by hand does not."""


@dataclass(frozen=True)
class Place:
    """Which rank this process is."""

    rank: int = 0
    local_rank: int = 0
    n_ranks: int = 1
    n_local: int = 1
    restarts_left: int = 0
    torchrun: int | None = None
    """The process id of torchrun, which has started this process; None: it has not."""

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The place that torchrun's variables tell; without them, the process is alone.

        Raises:
            ConfigError: a variable is not a number, or the variables contradict each other.
        """
        n_ranks, torchrun = count_ranks(environment), os.getppid() if BY_TORCHRUN in environment else None
        if n_ranks <= 1:
            return cls(torchrun=torchrun)
        restarts = _read(environment, "TORCHELASTIC_MAX_RESTARTS", 0) - _read(
            environment, "TORCHELASTIC_RESTART_COUNT", 0
        )
        place = cls(
            rank=_read(environment, "RANK"),
            local_rank=_read(environment, "LOCAL_RANK"),
            n_ranks=n_ranks,
            n_local=_read(environment, "LOCAL_WORLD_SIZE", 1),
            restarts_left=max(0, restarts),
            torchrun=torchrun,
        )
        if not (place.rank < n_ranks and place.local_rank < place.n_local <= n_ranks):
            raise ConfigError(f"torchrun's variables contradict each other: found {place}; start the ranks by torchrun")
        return place

    @property
    def is_alone(self) -> bool:
        """Whether there is no other rank."""
        return self.n_ranks == 1

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which evaluates, records and saves."""
        return self.rank == 0

    def directory(self, run_dir: Path) -> Path:
        """The directory of this rank, where ``run_dir`` is that of rank 0."""
        return run_dir if self.leads else run_dir / f"rank-{self.rank}"

    def share(self, batch_size: int) -> int:
        """The number of draws of this rank in a batch of ``batch_size``.

        Raises:
            ConfigError: the ranks cannot have equal shares.
        """
        if batch_size % self.n_ranks or not batch_size:
            raise ConfigError(
                f"agent.params.batch_size: expected a multiple of the number of ranks ({self.n_ranks}), since each "
                f"draws an equal share, found {batch_size}"
            )
        return batch_size // self.n_ranks

    def adapt(self, config: RunConfig) -> RunConfig:
        """The configuration of this rank, made from that of the run.

        Raises:
            ConfigError: the run cannot have several ranks.
        """
        if self.is_alone:
            return config
        _require_ranks_fit(config, self)
        # Ranks of one host must not share ports.
        listen, metrics = config.server.listen, config.metrics.listen
        changes: dict[str, Any] = {
            "server": config.server.model_copy(update={"listen": _move_address(listen, self.local_rank)}),
            "metrics": config.metrics.model_copy(
                update={"listen": metrics and _move_address(metrics, METRICS_APART * self.local_rank)}
            ),
        }
        if self.leads:
            return config.model_copy(update=changes)
        # Rank 0 alone decides when training ends, scores, records and saves.
        quiet = {"target_score": None, "max_seconds": None, "max_env_steps": None, "eval_interval": 0}
        return config.model_copy(
            update={
                **changes,
                "seed": config.seed + self.rank * SEEDS_APART,
                "run_dir": None if config.run_dir is None else self.directory(config.run_dir),
                "trainer": config.trainer.model_copy(update={**quiet, "save_interval": None}),
                "evaluator": config.evaluator.model_copy(update={"process": "inline"}),
                "recorders": (),
                "callbacks": (),
            }
        )

    def with_its_shares(self, config: RunConfig) -> RunConfig:
        """The configuration with this rank's shares of warm-up and deviation, which set its replay ratio."""
        if self.is_alone:
            return config
        share = -(-config.trainer.warmup_period // self.n_ranks)
        error = config.replay.error_buffer
        return config.model_copy(
            update={
                "trainer": config.trainer.model_copy(update={"warmup_period": share}),
                "replay": config.replay.model_copy(
                    update={"error_buffer": None if error is None else error / self.n_ranks}
                ),
            }
        )


def count_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """The number of ranks that torchrun's variable tells; without it, 1.

    Raises:
        ConfigError: it is not a number.
    """
    return _read(environment, RANKS, 1)


def _require_ranks_fit(config: RunConfig, place: Place) -> None:
    batch_size = config.agent.params.get("batch_size")
    if isinstance(batch_size, int):
        place.share(batch_size)
    if config.replay.sources and config.replay.prioritized is not None:
        raise ConfigError(
            "replay.prioritized: expected no replay.sources beside it with several ranks, since the weights of draws "
            "are compared over the actors' rows of all ranks only"
        )
    apart = {"server.listen": 1, "metrics.listen": METRICS_APART}
    places = config.places_to_listen()
    taken = [port + apart[key] * i for key, _, port in places if port for i in range(place.n_local)]
    if len(set(taken)) < len(taken) or max(taken, default=0) > MOST_PORT:
        raise ConfigError(
            f"server.listen, metrics.listen: expected room for the ports of {place.n_local} ranks on this host, found "
            f"{', '.join(map(str, taken))}; name other ports, or port 0"
        )


def _move_address(address: str, by: int) -> str:
    """The address of a rank, counted from that of the first rank on its host; port 0, a free one, stays."""
    host, port = split_address(address)
    return join_address(host, port + by if port else 0)


def _read(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        raise ConfigError(f"{name}: expected a number, as torchrun sets it, found '{text}'")
    return int(text)
