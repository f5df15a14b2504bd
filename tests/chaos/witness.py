"""An actor whose acknowledgements are noted outside its process, so that kill -9 does not take them along.

python -m tests.chaos.witness DIRECTORY --learner HOST:PORT …
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from actor import cli
from actor.client import pusher
from actor.spool import Spool
from common.pb import crossborder_pb2 as pb

_SEQ = np.dtype("<u8")


class WitnessedSpool(Spool[pb.PushItemsRequest]):
    """Writes the highest acknowledged seq into a mapped file."""

    note = Path()

    def __init__(self, *limits: int) -> None:
        super().__init__(*limits)
        self._acknowledged: Any = np.memmap(self.note, _SEQ, "w+", shape=(1,))

    def acknowledge(self, seq: int) -> None:
        self._acknowledged[0] = max(seq, int(self._acknowledged[0]))
        super().acknowledge(seq)


def acknowledged(directory: Path, pid: int) -> int:
    """The highest seq that was acknowledged to the actor with this process id."""
    path = directory / str(pid)
    return int(np.fromfile(path, _SEQ)[0]) if path.exists() else 0


def main() -> int:
    directory, *arguments = sys.argv[1:]
    WitnessedSpool.note = Path(directory) / str(os.getpid())
    pusher.Spool = WitnessedSpool  # type: ignore[misc, assignment]
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
