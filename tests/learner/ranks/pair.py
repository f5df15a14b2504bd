"""One of two ranks without actors: what it finds goes into a file. ``python -m tests.learner.ranks.pair DIRECTORY``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from common.agents.averaging import average
from common.agents.dqn import DQN
from common.agents.losses.sequence_losses import masked_loss
from common.agents.machinery.gradient_step import descend
from common.agents.machinery.optimizers import UncompiledOptimizer
from common.agents.networks.batch_renorm import BatchRenorm
from common.config.replay_config import PrioritizedConfig
from common.data import Array, Column, Items, Schema
from common.errors import CrossborderError
from common.interfaces import EnvSpec, ReplayBuffer
from learner.ranks.agent_state import compute_checksum, share_agent
from learner.ranks.beginning import begin_in_order
from learner.ranks.group import Group
from learner.ranks.place import Place
from learner.ranks.shard import ShardBuffer, share_updates
from learner.ranks.turns import FAILED, Measured, Turns
from learner.replay.memory import ReplayMemory
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.reader import NothingToDrawError
from learner.replay.writer import ReplayWriter
from learner.views.items import SelfContained
from tests.conftest import wait_for

SPEC = EnvSpec(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
BATCH, STEPS = 16, 6
ERRORS = ((1.0, 2.0, 3.0), (0.5, 4.0, 8.0, 16.0))
"""The TD errors of the rows of two shards."""
ALPHA, BETA = 0.6, 0.4


class Batches(ReplayBuffer):
    """Gives the same batches on each rank, or the rank's share of each: every second draw."""

    def __init__(self, shares: slice) -> None:
        self._shares, self._rng = shares, np.random.default_rng(0)

    @property
    def inserted(self) -> int:
        return 1000

    @property
    def sampled(self) -> int:
        return 1000

    def __len__(self) -> int:
        return 1000

    def batch(self, size: int) -> Items:
        rng = self._rng
        whole: dict[str, Array] = {
            "obs": rng.normal(5, 2, (BATCH, 3)).astype(np.float32),
            "action": rng.integers(0, 2, BATCH),
            "reward": rng.normal(size=BATCH).astype(np.float32),
            "next_obs": rng.normal(5, 2, (BATCH, 3)).astype(np.float32),
            "terminated": rng.random(BATCH) < 0.2,
            "weight": rng.random(BATCH).astype(np.float32),
        }
        return {name: column[self._shares] for name, column in whole.items()}

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Do nothing: it is never called, since no batch has an index."""


def learn(shares: slice, update: str) -> dict[str, torch.Tensor]:
    """The networks after a few opt steps."""
    params: dict[str, Any] = {"units": [8], "batch_size": BATCH, "normalize_observations": True, "max_grad_norm": 0.5}
    agent = DQN(SPEC, seed=3, update=update, soft_update_interval=2, **params)
    buffer = Batches(shares)
    for _ in range(STEPS):
        agent.opt(buffer)
    return {name: tensor.clone() for name, tensor in agent.save_params().items()}


def make_masks() -> tuple[torch.Tensor, torch.Tensor]:
    """Values and a mask of two sequences; the first has fewer steps."""
    counts = torch.tensor([[True, False, False, False], [True, True, True, False]])
    return torch.arange(1.0, 9.0).view(2, 4), counts


class PlainSGD(UncompiledOptimizer):
    """Steps of size 1. torch's own imports torch.compile, which would keep the threads of an open group for good."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def _change(self, parameters: list[torch.Tensor], grads: list[torch.Tensor], group: dict[str, Any]) -> None:
        torch._foreach_sub_(parameters, grads)


def descend_masked(rows: slice) -> float:
    """A parameter after one step of size 1 down a masked loss."""
    parameter, (values, counts) = torch.nn.Parameter(torch.ones(())), make_masks()
    descend(masked_loss(parameter * values[rows], counts[rows]), PlainSGD([parameter]))
    return float(parameter.detach())


def make_shard(directory: Path, errors: Sequence[float], normalize: str) -> PrioritizedReplay:
    """A shard whose rows have these errors."""
    memory = ReplayMemory(directory, Schema((Column("n", "<i8"),)), 100, create=True)
    ReplayWriter(memory).append({"n": np.arange(len(errors))}, len(errors), incarnation=1, seq=1)
    config = PrioritizedConfig(alpha=ALPHA, beta_0=BETA, normalize=normalize)
    replay = PrioritizedReplay(memory, SelfContained(memory.schema), config, 0, 10**15)  # Beta stays.
    replay.batch(1)
    replay.update_priority(np.arange(len(errors)), np.array(errors, np.float32))
    return replay


class Rank:
    """Runs all scenarios in their order, as every rank must."""

    def __init__(self, group: Group, directory: Path) -> None:
        self.group, self.rank, self.directory = group, group.place.rank, directory
        self.turns = Turns(group, lambda: Measured(self.opt_steps, 0, 10 + self.rank, self.rank), lambda: None)
        self.opt_steps = 1

    def exchange(self) -> Any:
        lives = list[int]()
        return self.group.exchange([self.rank, 0.5], lambda: lives.append(1))

    def broadcast(self) -> Any:
        return self.group.broadcast(f"of {self.rank}".encode()).decode()

    def gather(self) -> Any:
        return [data.decode() for data in self.group.gather(f"host-{self.rank}:1".encode(), 20)]

    def agreed(self) -> Any:
        """Both say so, rank 1 alone, and none."""
        return [self.group._agree(says) for says in (True, self.rank == 1, False)]

    def average(self) -> Any:
        return average(torch.tensor([self.rank, 4])).tolist()

    def masked(self) -> Any:
        return descend_masked(slice(self.rank, self.rank + 1))

    def batch_norm(self) -> Any:
        norm = BatchRenorm(1)
        norm(torch.tensor([[0.0], [2.0]]) + 10 * self.rank)
        return [norm.running_mean.item(), norm.running_var.item()]

    def learnt(self) -> Any:
        nets = {update: learn(slice(self.rank, None, 2), update) for update in ("eager", "captured")}
        return {update: {name: tensor.tolist() for name, tensor in found.items()} for update, found in nets.items()}

    def shared_agent(self) -> Any:
        agent = DQN(SPEC, seed=self.rank, units=[8], batch_size=4)
        before = compute_checksum(agent, 1)
        agent._opt_steps = 7 + self.rank
        noise = int(agent.random_state().values["_rng"]["state"]["state"])
        share_agent(agent, self.group)
        kept = int(agent.random_state().values["_rng"]["state"]["state"]) == noise
        return {"same": compute_checksum(agent, 1) == before, "opt_steps": agent._opt_steps, "kept_noise": kept}

    def weights(self) -> Any:
        found = {}
        for normalize in ("all", "batch"):
            shard = make_shard(self.directory / f"{normalize}-{self.rank}", ERRORS[self.rank], normalize)
            buffer = ShardBuffer(shard, self.group.place, self.turns, prioritized=shard)
            self.turns.begin(0)
            batch = buffer.batch(12)
            found[normalize] = {"index": batch["index"].tolist(), "weight": batch["weight"].tolist()}
        return found

    def updates(self) -> Any:
        """The shards have been restored from checkpoints of different opt steps."""
        shard = make_shard(self.directory / f"updates-{self.rank}", ERRORS[self.rank], "all")
        for _ in range(3 * self.rank):
            shard.update_priority(np.arange(1), np.ones(1, np.float32))
        share_updates(shard, self.group)
        return shard.updates

    def waits(self) -> Any:
        """Rank 1 has nothing to draw at first: rank 0 keeps what it has drawn."""
        memory = ReplayMemory(self.directory / f"waits-{self.rank}", Schema((Column("n", "<i8"),)), 100, create=True)
        writer = ReplayWriter(memory)
        if self.rank == 0:
            writer.append({"n": np.arange(3)}, 3, incarnation=1, seq=1)
        shard = PrioritizedReplay(memory, SelfContained(memory.schema), PrioritizedConfig(), 0, 10)
        buffer, tries = ShardBuffer(shard, self.group.place, self.turns, prioritized=shard), 0
        while True:
            self.turns.begin(0)
            tries += 1
            try:
                buffer.batch(4)
            except NothingToDrawError:
                if self.rank == 1:
                    writer.append({"n": np.arange(3)}, 3, incarnation=1, seq=1)
            else:
                return {"tries": tries, "sampled": buffer.sampled, "elsewhere": self.turns.inserted_elsewhere}

    def begins(self) -> Any:
        """Rank 0 begins only when rank 1 has come, so rank 1 would begin before it if it did not wait."""
        came, leading = self.directory / "came", self.directory / "leading"
        found = list[bool]()

        def begin() -> None:
            if self.rank == 0:
                wait_for(came.exists, "rank 1")
                leading.touch()
            found.append(leading.exists())

        if self.rank == 1:
            came.touch()
        noted = list[int]()
        begin_in_order(self.group, begin, noted.append)
        return [found, noted]

    def other_step(self) -> Any:
        self.opt_steps = 1 + self.rank
        found = self._error(lambda: self.turns.ask(has_drawn=True))
        self.opt_steps = 1
        return found

    def other_model(self) -> Any:
        turns = Turns(self.group, lambda: Measured(1, self.rank, 0, 0), lambda: None)
        return self._error(lambda: turns.ask(has_drawn=True))

    def ending(self) -> Any:
        turns = Turns(self.group, lambda: Measured(1, 0, 0, 0), lambda: None)
        turns.begin(3 * self.rank)
        return [turns.ask(has_drawn=True), turns.ending, turns.ask(has_drawn=True)]

    def failed(self) -> Any:
        turns = Turns(self.group, lambda: Measured(1, 0, 0, 0), lambda: None)
        turns.begin(FAILED if self.rank else 0)
        return self._error(lambda: turns.ask(has_drawn=True))

    def lost(self) -> Any:
        if self.rank == 1:
            self.group.close()
            return None
        return self._error(lambda: self.group.exchange([0.0], lambda: None))

    def _error(self, call: Callable[[], object]) -> str:
        try:
            call()
        except CrossborderError as error:
            return f"{type(error).__name__}: {error}"
        return ""


SCENARIOS = (
    *(
        "exchange",
        "broadcast",
        "gather",
        "agreed",
        "average",
        "masked",
        "batch_norm",
        "learnt",
        "shared_agent",
        "weights",
    ),
    *("updates", "waits", "begins", "other_step", "other_model", "ending", "failed", "lost"),
)


def slow_weights(errors: Sequence[Sequence[float]], rank: int, index: Array, normalize: str) -> Array:
    """``(N P)^-beta`` over its maximum, by the formula of the paper over the rows of all shards."""
    priorities = [(np.abs(np.array(shard)) + 1e-8) ** ALPHA for shard in errors]
    n_rows = sum(map(len, priorities))
    chances = [priority / (len(errors) * priority.sum()) for priority in priorities]
    weights = [(n_rows * chance) ** -BETA for chance in chances]
    assert np.isclose(sum(map(np.sum, chances)), 1)
    assert normalize == "all"
    found: Array = weights[rank][index] / max(map(np.max, weights))
    return found


def find_threads() -> list[str]:
    """The names of this process's threads that torch has begun for a group."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def main() -> int:
    directory = Path(sys.argv[1])
    torch.set_num_threads(1)
    with Group(Place.find(os.environ), 60.0, "cpu") as group:
        group.begin_averaging(None)
        rank = Rank(group, directory)
        found = {name: getattr(rank, name)() for name in SCENARIOS}
    found["threads"] = find_threads()
    (directory / f"{rank.rank}.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
