"""The directory of a run as a learner leaves it, with a replay of linked rows, and its mirror."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

from learner.replay.memory import ReplayMemory
from learner.replay.writer import ReplayWriter
from learner.shared.mirror_block import MirrorBlock
from learner.storage.mirror import Mirror, Past, keep_past, read_past
from learner.storage.mirroring import Mirroring
from learner.storage.restoring import restore
from tests.learner.replay.memories import next_linked, open_linked

RUN_ID = "0123456789abcdef"
ACTOR = 7


def keep_nothing(past: Past) -> None:
    """In the place of a run directory that keeps the epochs."""


class MirroredRun:
    """A run below a directory, whose host can vanish.

    Args:
        directory: holds the mirror, and the run's directory of each host.
        capacity: of the replay.
        seconds: after which a state is written, however many rows are left.
    """

    def __init__(self, directory: Path, capacity: int = 512, seconds: float = 60.0) -> None:
        self.directory, self.url, self._seconds = directory, f"file://{directory}/mirror", seconds
        self.run = directory / "host-0" / "run"
        (self.run / "shared").mkdir(parents=True)
        (self.run / "run.json").write_text(json.dumps({"run_id": RUN_ID, "incarnation": 1}))
        (self.run / "lock").touch()
        self.checkpoint(0)
        self.memory = open_linked(self.run / "shared", create=True, capacity=capacity)
        self._begin()

    def _begin(self) -> None:
        self.writer = ReplayWriter(self.memory)
        self.mirror, self.block = Mirror(self.url), MirrorBlock.open(self.run / "shared")
        past, _ = read_past(self.run)
        newest = self.mirror.claim(RUN_ID, past, partial(keep_past, self.run))
        self.block.start(0, time.monotonic())
        self.mirroring = Mirroring(self.run, RUN_ID, self.mirror, newest, block=self.block, seconds=self._seconds)

    def checkpoint(self, opt_steps: int) -> None:
        """Write the files of a checkpoint, in the place of the one before."""
        new = self.run / "checkpoints" / str(opt_steps)
        new.mkdir(parents=True)
        (new / "state.json").write_text(str(opt_steps))

    def store(self, batches: int, rows: int = 5) -> None:
        """Store so many batches of an actor."""
        for _ in range(batches):
            seq = self.writer.last_seq(ACTOR) + 1
            self.writer.append(next_linked(self.memory, rows), rows, incarnation=ACTOR, seq=seq)

    def begin_again(self) -> None:
        """Begin another life of the run on this host."""
        self._begin()

    def vanish(self) -> ReplayMemory:
        """Restore the run on another host; return the replay that it has there."""
        self.run = self.directory / f"host-{len(list(self.directory.glob('host-*')))}" / "run"
        self.run.parent.mkdir()
        restored = Mirror(self.url)
        restore(restored, self.run)
        self.mirror = restored
        self.memory = ReplayMemory(
            self.run / "shared" / "replay", self.memory.schema, self.memory.capacity, create=False
        )
        return self.memory
