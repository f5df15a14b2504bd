"""A trial before training: one opt step with made-up rows shows whether the agent can learn from the run's batches.

Without it, a view that does not suit the agent would be found only after the warm-up, by an error deep in a network.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import numpy as np
import torch

from common.agents.network_agent import NetworkAgent
from common.agents.torch_device import require_device
from common.config.run_config import RunConfig
from common.data import Array, Items
from common.errors import ConfigError, CrossborderError, PluginError
from common.interfaces import Agent, ReplayBuffer
from common.parts import Parts
from common.plugins.part_config import AgentArguments
from common.plugins.part_loading import first_line
from learner.datasets.loading import FIRST_INCARNATION
from learner.datasets.made_up import make_up_episodes
from learner.loop.learner_parts import LiveTensors, check_tensors, computing_in
from learner.loop.replay_opening import build_buffer, build_view, place_on_device
from learner.replay.memory import ReplayMemory
from learner.replay.queue import QueueReplay
from learner.replay.reader import NothingToDrawError, ReplayReader
from learner.replay.shared_buffer import BufferOver
from learner.replay.view import Plan, View
from learner.replay.writer import ReplayWriter
from learner.shared.durable import naming_write_errors

log = logging.getLogger(__name__)
BatchT = TypeVar("BatchT", Items, dict[str, torch.Tensor])
MANY_DRAWS: Final = 1 << 20
"""The draws from which on a batch is compared with this host's memory."""
QUICK_BYTES: Final = 4 << 20
"""The largest batch that a quick trial learns from."""
ROWS: Final = (256, 4096, 65536)
"""The number of rows that are made up at first, and the larger numbers if the agent wants more rows."""
MAX_BYTES: Final = 64 << 20
"""The most bytes of rows that are made up after the first number."""
GIVEN_BY: Final = {
    "mask": "replay.view.target: Sequences gives it",
    "first": "replay.view.target: Sequences gives it",
    "warm": "replay.view.target: Sequences gives it",
    "discount": "replay.view.params.n above 1 gives it",
    "index": "replay.prioritized gives it",
    "weight": "replay.prioritized gives it",
    "source": "replay.sources gives it",
}
"""By column that only some batches have: the setting that adds it."""
STATISTICS: Final = ".running_mean"
"""The end of the names of tensors in which batch norm layers gather statistics."""


def try_opt(config: RunConfig, parts: Parts, place: Path | None = None, *, quick: bool = False) -> frozenset[str]:
    """Build another agent, and let it take one opt step from made-up rows through the configured replay and view.

    Afterwards the agent and the rows are gone, and the global random generators are as they were before, but that of a
    GPU after an error.

    Args:
        config: of the run, checked already.
        parts: of the run.
        place: where the rows are meanwhile, a directory for this call alone; what a killed start left there is removed.
            None: a temporary directory.
        quick: for the start of training, not for a check. The agent does not learn from batches above ``QUICK_BYTES``.
            If its ``opt`` raises for another reason than the batch's columns, this is only logged: it may demand other
            values. But after a failed assertion a GPU computes nothing more in this process.

    Returns:
        The keys of the agent's record; empty if it took no opt step.

    Raises:
        ConfigError: the batches lack a column that the agent asks for, or the agent refuses them; or there is no place
            for temporary files.
        RunDirectoryError: the rows cannot be written.
        PluginError: ``opt`` failed for another reason; with ``quick``, the device computes nothing more. Or ``opt`` has
            replaced tensors of ``model_info``, or left a batch norm layer in eval mode.
        CrossborderError: the buffer or the agent cannot be built.
    """
    with _keeping_generators(config.trainer.device), making_directory(place) as directory:
        arguments = AgentArguments(spec=parts.spec, seed=config.seed, epsilon=0.0, device=config.trainer.device)
        agent: Agent = config.agent.build(**arguments)
        agent.train()
        if isinstance(agent, NetworkAgent):
            agent.compute_eagerly()
        trial = _Trial(config, parts, agent, is_quick=quick)
        for i, rows in enumerate(ROWS[:2] if quick else ROWS):
            is_too_much = i > 0 and rows * parts.schema.row_bytes > MAX_BYTES
            if is_too_much or trial.settles(directory / str(i), rows):
                break
        return trial.keys


class _TooLargeError(Exception):
    """The agent draws a larger batch than a quick trial learns from."""


class _Trial:
    """The trial of an agent that no other code uses."""

    def __init__(self, config: RunConfig, parts: Parts, agent: Agent, *, is_quick: bool) -> None:
        self._config, self._parts, self._agent, self._is_quick = config, parts, agent, is_quick
        self.keys = frozenset[str]()

    def settles(self, directory: Path, rows: int) -> bool:
        """Let the agent learn from this many rows; False if it wants more of them.

        Raises:
            PluginError: the agent has replaced tensors of ``model_info``, or see ``try_opt``.
        """
        trainer = self._config.trainer
        buffer = _Watched(self._fill(directory, rows), QUICK_BYTES if self._is_quick else None)
        before, live = _copy_tensors(self._agent), LiveTensors(self._agent, self._config.agent.target)
        try:
            self._require_view(self._reader)
            with computing_in(trainer.precision, trainer.device):
                record = self._agent.opt(buffer)
            if torch.device(trainer.device).type == "cuda":
                torch.cuda.synchronize(trainer.device)  # What has failed on the GPU would show in a later call.
        except CrossborderError:
            raise
        except NothingToDrawError:
            return False
        except _TooLargeError:
            return True
        except Exception as error:  # noqa: BLE001 - an agent may raise any; its error is raised or logged
            self._explain(error, buffer.columns)
            return True
        if record is not None:
            _require_statistics(before, _copy_tensors(self._agent))
            check_tensors(self._agent)
            live.require()
            self.keys = frozenset(record)
            if "index" in buffer.columns and not buffer.has_td_errors:
                log.warning(
                    "replay.prioritized: %s reported no TD errors after an opt step: without them all rows are drawn "
                    "alike",
                    self._config.agent.target,
                )
        return record is not None

    def _fill(self, directory: Path, rows: int) -> ReplayBuffer:
        """The configured buffer over made-up rows."""
        config, parts = self._config, self._parts
        view = build_view(parts.schema, config)
        memory = _PassingMemory(directory, parts.schema, 8 * (rows + view.reach), create=True)
        writer = ReplayWriter(memory)
        for episode in make_up_episodes(parts, self._agent, view.reach, rows):
            if n := parts.schema.count(episode):
                writer.append(episode, n, FIRST_INCARNATION, writer.last_seq(FIRST_INCARNATION) + 1)
        self._reader = ReplayReader(memory, view, np.random.default_rng(0))
        buffer = build_buffer(memory, config, dict.fromkeys(config.replay.sources, memory))
        if self._agent.draws_once:
            self._require_once(buffer, view)
        if self._agent.keeps_to_episodes:
            self._require_one_episode(view)
        return place_on_device(buffer, config)

    def _require_view(self, reader: ReplayReader) -> None:
        """Check the kinds of what the view gives: numpy would take other kinds for something else."""
        reader.look()
        rows, where = np.arange(reader.first, reader.end), f"replay.view: {self._config.replay.view.target}"
        able: Any = reader.view.can_draw(reader, rows)
        if not (isinstance(able, np.ndarray) and able.dtype == np.bool_ and able.shape == rows.shape):
            raise PluginError(f"{where}.can_draw: expected an array of {len(rows)} bool, found {able!r:.80}")
        plan: Any = reader.view.plan(reader, rows[able][:1])
        if not isinstance(plan, Plan):
            raise PluginError(f"{where}.plan: expected a crossborder.Plan, found {plan!r:.80}")

    def _require_once(self, buffer: ReplayBuffer, view: View) -> None:
        """Check that no step is drawn twice."""
        target, replay = self._config.agent.target, self._config.replay
        named = replay.view
        if not isinstance(buffer, QueueReplay):
            raise ConfigError(
                f"replay.target: {target} learns from each step once, so it needs QueueReplay, "
                "without replay.sources; found a replay that draws steps again"
            )
        if view.overlaps:
            raise ConfigError(
                f"replay.view.params: {target} learns from each step once, so period must be the length of sequences, "
                f"without across; found {named.params} of {named.target}, whose draws have steps in common"
            )
        if replay.samples_per_insert not in (None, 1):
            raise ConfigError(
                f"replay.samples_per_insert: {target} learns from each step once: expected 1, with which actors wait "
                f"for training, or null; found {replay.samples_per_insert:g}"
            )

    def _require_one_episode(self, view: View) -> None:
        """Check that each draw lies within one episode."""
        target, named = self._config.agent.target, self._config.replay.view
        if view.crosses_episodes:
            raise ConfigError(
                f"replay.view.params: {target} learns from sequences of one episode: expected Sequences "
                f"without across; found {named.params} of {named.target}, whose draws go on in the next episode"
            )

    def _explain(self, error: Exception, columns: dict[str, str]) -> None:
        """Raise an error that names the column that is missing, or the columns that the agent was given."""
        agent, view = self._config.agent.target, self._config.replay.view.target
        given = ", ".join(f"{name} {text}" for name, text in columns.items())
        missing = error.args[0] if isinstance(error, KeyError) and error.args else None
        if columns and isinstance(missing, str) and missing not in columns:
            hint = f"; {GIVEN_BY[missing]}" if missing in GIVEN_BY else ""
            raise ConfigError(
                f"replay.view: {agent} asks for the column '{missing}', which {view} does not give{hint}; "
                f"the batch has {given}"
            ) from error
        message = f"agent: {agent} could not learn from made-up rows ({first_line(error)}); "
        message += f"the batch had {given}" if columns else "it drew no batch"
        if not self._is_quick:
            raise PluginError(message) from error
        try:
            require_device(self._config.trainer.device)
        except ConfigError:
            raise PluginError(
                f"{message}; the device computes nothing more in this process. Made-up observations may have any value "
                "of the observation space; if a network does not take them all, the space must be narrower"
            ) from error
        # An assertion of the agent may fail only because the values are made up.
        level = logging.INFO if isinstance(error, AssertionError) else logging.WARNING
        log.log(level, "%s; training goes on, but may fail at the first opt step", message)


class _PassingMemory(ReplayMemory):
    """A replay that no process opens again, so nothing of it needs to reach the disk."""

    def sync(self) -> None:
        """Do nothing."""


class _Watched(BufferOver):
    """A buffer that notes the columns of the batches which it gives.

    Args:
        buffer: gives the batches.
        most_bytes: the largest batch that it gives; None sets no limit.
    """

    def __init__(self, buffer: ReplayBuffer, most_bytes: int | None) -> None:
        super().__init__(buffer)
        self._most_bytes = most_bytes
        self.columns: dict[str, str] = {}
        """Dtype and shape of each column of the last batch."""
        self.has_td_errors = False
        """Whether the agent has reported TD errors."""

    def update_priority(self, index: Array, td_error: Array) -> None:
        super().update_priority(index, td_error)
        self.has_td_errors = True

    def batch(self, size: int) -> Items:
        self._require_small(size)
        return self._note(self._buffer.batch(size))

    def tensors(self, size: int) -> dict[str, torch.Tensor] | None:
        self._require_small(size)
        batch = self._buffer.tensors(size)
        return None if batch is None else self._note(batch)

    def _require_small(self, size: int) -> None:
        """Raise an error rather than gather a batch that would take long to learn from, or that no memory holds."""
        if size == 1 or (self._most_bytes is None and size < MANY_DRAWS):
            return
        needed = size * sum(column.nbytes for column in self._buffer.batch(1).values())
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > memory:
            raise ConfigError(
                f"agent.params: expected batches for which there is memory here, {memory >> 30} GiB, found one of "
                f"{size} draws, which takes {needed >> 30} GiB"
            )
        if self._most_bytes is not None and needed > self._most_bytes:
            raise _TooLargeError

    def _note(self, batch: BatchT) -> BatchT:
        self.columns = {name: f"{column.dtype} {list(column.shape)}" for name, column in batch.items()}
        return batch


def _copy_tensors(agent: Agent) -> dict[str, dict[str, torch.Tensor]]:
    """The parameters and statistics of each network that learns; none of an agent without ``nets``."""
    nets = agent.nets if isinstance(agent, NetworkAgent) else {}
    learning = {name: net.state_dict() for name, net in nets.items() if not name.endswith("_tgt")}
    return {name: {key: value.clone() for key, value in tensors.items()} for name, tensors in learning.items()}


def _require_statistics(before: dict[str, dict[str, torch.Tensor]], after: dict[str, dict[str, torch.Tensor]]) -> None:
    """Check that batch norm layers have gathered statistics in each network that has learned."""
    for net, tensors in before.items():
        changed = {key for key, value in tensors.items() if not torch.equal(value, after[net][key])}
        still = next((key for key in tensors.keys() - changed if key.endswith(STATISTICS)), None)
        if changed and still is not None:
            raise PluginError(
                f"agent: '{net}' has learned while its batch norm layer '{still.removesuffix(STATISTICS)}' was in eval "
                "mode, where it normalises by statistics that nobody gathers: call train() on the network before the "
                "update, or give the network to Update, which calls it"
            )


@contextmanager
def _keeping_generators(device: str) -> Iterator[None]:
    """Leave the global random generators as they were; that of a GPU only if no error leaves this context."""
    standard, legacy = random.getstate(), np.random.get_state()
    on_gpu = torch.cuda.get_rng_state(device) if torch.device(device).type == "cuda" else None
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(standard)
        np.random.set_state(legacy)
    if on_gpu is not None:  # After a failed assertion the GPU would refuse it, and so hide what has failed.
        torch.cuda.set_rng_state(on_gpu, device)


@contextmanager
def making_directory(place: Path | None = None) -> Iterator[Path]:
    """A directory for the length of this context: at ``place``, or a temporary one.

    Raises:
        ConfigError: there is no place for a temporary one.
        RunDirectoryError: ``place`` cannot be written.
    """
    if place is not None:
        shutil.rmtree(place, ignore_errors=True)
        with naming_write_errors(place.parent):
            place.mkdir()
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return
    try:
        directory = TemporaryDirectory(prefix="crossborder-")
    except OSError as error:
        raise ConfigError(f"TMPDIR: expected a directory for temporary files that can be written: {error}") from error
    with directory as name:
        yield Path(name)
