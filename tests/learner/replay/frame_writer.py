"""A process that writes stacked items into a replay as fast as it can, until its stdin closes or it is killed."""

from __future__ import annotations

import select
import sys
from pathlib import Path

import numpy as np

from learner.replay.writer import ReplayWriter
from tests.frames import stacked_items
from tests.learner.replay.test_frame_ring import BATCH, open_memory


def main() -> None:
    memory = open_memory(Path(sys.argv[1]), create=False)
    writer = ReplayWriter(memory)
    seq = writer.last_seq(1)
    while not select.select([sys.stdin], [], [], 0)[0]:
        seq += 1
        n = np.arange(memory.committed, memory.committed + BATCH)
        writer.append(stacked_items(n), BATCH, incarnation=1, seq=seq)


if __name__ == "__main__":
    main()
