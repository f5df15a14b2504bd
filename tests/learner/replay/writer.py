"""A process that writes checksummed rows into a replay as fast as it can, until its stdin closes."""

from __future__ import annotations

import select
import sys
from pathlib import Path

import numpy as np

from learner.replay.memory import ReplayMemory
from learner.replay.writer import ReplayWriter
from tests.learner.replay.test_uniform import CAPACITY, SCHEMA

BATCH = 64


def main() -> None:
    memory = ReplayMemory(Path(sys.argv[1]), SCHEMA, CAPACITY, create=False)
    writer = ReplayWriter(memory)
    seq = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        seq += 1
        n = np.arange(memory.committed, memory.committed + BATCH)
        writer.append({"n": n, "many": np.repeat(n[:, None], 64, axis=1)}, BATCH, incarnation=1, seq=seq)


if __name__ == "__main__":
    main()
