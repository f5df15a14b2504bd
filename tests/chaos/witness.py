"""An actor whose acknowledgements are noted outside its process, so that kill -9 does not take them along.

python -m tests.chaos.witness DIRECTORY --learner HOST:PORT …
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actor.client import pusher
from actor.client.requests import WaitingBatch
from actor.commands import actor_worker
from actor.spool import Spool


class Noted(NamedTuple):
    """Batches of one actor."""

    acknowledged: int = 0
    made: int = 0


class WitnessedSpool(Spool[WaitingBatch]):
    """Writes how many batches it was given, and how many were acknowledged, into a mapped file."""

    path = Path()

    def __init__(self, *limits: int, **options: Any) -> None:
        super().__init__(*limits, **options)
        self._noted: Any = np.memmap(self.path, "<u8", "w+", shape=(2,))

    def put(self, message: WaitingBatch, size: int, rows: int, seconds: float) -> bool:
        taken = super().put(message, size, rows, seconds)
        self._noted[1] += taken
        return taken

    def acknowledge(self, seq: int) -> None:
        super().acknowledge(seq)
        self._noted[0] = max(int(self._noted[1]) - len(self), int(self._noted[0]))


def noted(directory: Path, pid: int) -> Noted:
    """What was noted of the actor with this process id."""
    path = directory / str(pid)
    return Noted(*np.fromfile(path, "<u8").tolist()) if path.exists() else Noted()


def main() -> int:
    directory, *arguments = sys.argv[1:]
    WitnessedSpool.path = Path(directory) / str(os.getpid())
    pusher.Spool = WitnessedSpool  # type: ignore[assignment, attr-defined]
    return actor_worker.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
