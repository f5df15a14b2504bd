"""Whether a large replay gets slower as it fills: 10 million rows of CartPole, or 1 million of Atari, a frame each.

Batches are stored and linked as ingest does it, and drawn as a trainer does it, each through a separate mapping,
while a batch comes for every four draws. The floor is the same replay when it is all but empty: ``to first`` are ratios
to that, of the three rates in order; 1 % of CartPole still fits in a processor's cache. The rate of inserts is the mean
since the previous mark; a prioritised draw includes its update of priorities. ``steps`` are whole opt steps of DQN with
2x256 units, from the replay at the end. Files are in the directory of temporary files (TMPDIR): 0.5 and 7.1 GB.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.report import median, report
from benchmarks.screens import Screens, life
from common.agents.dqn import DQN
from common.config.replay_config import PrioritizedConfig
from common.data import Schema
from common.lanes.building import spec_of
from common.parts import row_schema
from learner.replay.memory import ReplayMemory
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.shared_buffer import SharedReplay
from learner.replay.uniform import UniformReplay
from learner.replay.writer import ReplayWriter
from learner.views.transitions import Transitions

ROWS, DRAWN = 64, 512
DRAWS_PER_INSERT, INSERTS = 4, 40
MARKS = {"1 %": 0.01, "10 %": 0.1, "50 %": 0.5, "100 %": 1.0, "wrapped": 1.5}
KINDS: dict[str, tuple[Callable[[], gymnasium.Env[Any, Any]], int, int]] = {
    "cartpole": (lambda: gymnasium.make("CartPole-v1"), 10_000_000, 1),
    "atari": (Screens, 1_000_000, 4),
}
"""Environment, rows kept, and frames in an observation."""


class Replay:
    """A replay that is written to, and drawn from uniformly and by priorities."""

    def __init__(self, directory: Path, schema: Schema, capacity: int, stack: int) -> None:
        written, self.memory = (ReplayMemory(directory, schema, capacity, create=create) for create in (True, False))
        self._writer, self._seq = ReplayWriter(written), 0
        self._batch, view = life(schema, ROWS), Transitions(schema, stack)
        self.uniform = UniformReplay(self.memory, view, seed=0)
        self.prioritized = PrioritizedReplay(self.memory, view, PrioritizedConfig(), seed=0, n_opts=1000)

    def insert(self) -> None:
        self._seq += 1
        self._writer.append(self._batch, ROWS, incarnation=1, seq=self._seq)

    def fill(self, end: int) -> float:
        """Insert rows until ``end`` rows have come; return the rows per second."""
        began, before = time.perf_counter(), self.memory.committed
        while self.memory.committed < end:
            self.insert()
        return (self.memory.committed - before) / (time.perf_counter() - began)

    def rate(self, work: Callable[[], object]) -> float:
        """Calls per second of a function that draws; the inserts in between do not count."""
        work()  # The first draw takes in all rows that have come.
        spent = 0.0
        for _ in range(INSERTS):
            self.insert()
            began = time.perf_counter()
            for _ in range(DRAWS_PER_INSERT):
                work()
            spent += time.perf_counter() - began
        return DRAWS_PER_INSERT * INSERTS / spent


def draws(replay: Replay) -> tuple[float, float]:
    """Uniform and prioritised draws per second."""
    errors = np.random.default_rng(0).exponential(size=DRAWN).astype(np.float32)

    def prioritized() -> None:
        replay.prioritized.update_priority(replay.prioritized.batch(DRAWN)["index"], errors)

    return median(lambda: replay.rate(lambda: replay.uniform.batch(DRAWN))), median(lambda: replay.rate(prioritized))


def measure(kind: str, replay: Replay) -> list[dict[str, object]]:
    """The rates at each mark."""
    rows: list[dict[str, object]] = []
    first: tuple[float, ...] = ()
    for mark, share in MARKS.items():
        rates = replay.fill(int(share * replay.memory.capacity)), *draws(replay)
        first = first or rates
        names = ("inserts/s", "uniform draws/s", "prioritised draws/s")
        to_first = " ".join(f"{now / then:.2f}" for now, then in zip(rates, first, strict=True))
        rows.append({"kind": kind, "filled": mark, **dict(zip(names, rates, strict=True)), "to first": to_first})
    return rows


def steps(replay: Replay) -> dict[str, object]:
    """Opt steps per second, from draws of either kind."""
    spec = spec_of(gymnasium.make("CartPole-v1"))

    def rate(buffer: SharedReplay) -> float:
        agent = DQN(spec, seed=0, units=(256, 256), batch_size=DRAWN)
        return median(lambda: replay.rate(lambda: agent.opt(buffer)))

    uniform, prioritized = rate(replay.uniform), rate(replay.prioritized)
    return {"uniform steps/s": uniform, "prioritised steps/s": prioritized, "ratio": prioritized / uniform}


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.replay", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="cartpole")
    parser.add_argument("--capacity", type=int, help="rows kept; by default 10 or 1 million")
    given = parser.parse_args()
    make_env, capacity, stack = KINDS[given.kind]
    capacity = given.capacity or capacity
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        replay = Replay(Path(directory) / "replay", row_schema(spec_of(make_env())), capacity, stack)
        size = f"{capacity:,} rows, {replay.memory.n_bytes / capacity:,.0f} B each"
        report("replay", f"{size}, draws of {DRAWN}", measure(given.kind, replay))
        if given.kind == "cartpole":
            report("replay steps", f"DQN 2x256, one thread, batch {DRAWN}", [steps(replay)])


if __name__ == "__main__":
    main()
