"""A process that writes into a replay as fast as it can, until its stdin closes or it is killed.

Its arguments are the replay's directory, the kind of rows (``wide`` items or ``linked`` rows, see ``memories``) and
the replay's capacity.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

from learner.replay.memory import ReplayMemory
from learner.replay.writer import ReplayWriter
from tests.learner.replay.memories import BATCH, WIDE, next_linked, open_linked, wide_rows

WIDE_BATCH = 64


def main() -> None:
    directory, kind, capacity = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if kind == "wide":
        memory, rows = ReplayMemory(directory / "replay", WIDE, capacity, create=False), WIDE_BATCH
    else:
        memory, rows = open_linked(directory, create=False, capacity=capacity), BATCH
    writer = ReplayWriter(memory)
    seq = writer.last_seq(1)
    while not select.select([sys.stdin], [], [], 0)[0]:
        seq += 1
        items = wide_rows(memory.committed, rows) if kind == "wide" else next_linked(memory, rows)
        writer.append(items, rows, incarnation=1, seq=seq)


if __name__ == "__main__":
    main()
