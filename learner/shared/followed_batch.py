"""The traced batch that the trainer follows until it has learnt from it: the shared memory, and ingest's end of it.

The trainer's end is ``learner.loop.opt_traces``.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from typing import Final, Self

from common.process.tracing import PARENT_BYTES, is_trace_parent, open_tracing
from common.shared.mapped import Word, Words, fence, map_file

_PARENT_AT: Final = 64
FOLLOW_SECONDS: Final = 60.0
"""A batch is given up if no model has learnt from it after this time: it may have been overwritten without a draw."""


class FollowedBatch(Words):
    """Which batch is followed, and the model that has learnt from it.

    Ingest writes a batch and then its number; the trainer reads the number and then the batch, and writes the model and
    then the same number into ``learnt``. Ingest writes no other batch before that, unless it gives the batch up: then
    the trainer may mix up two traces, and nothing else.
    """

    N_WORDS = 8
    # Written by ingest.
    number = Word(0)
    """Batches that have been followed so far, with this one."""
    actor = Word(1)
    """Row of the actor table of the actor that has sent the batch."""
    first = Word(2)
    end = Word(3)
    """Absolute indices of the batch's first row, and after its last row."""
    # Written by the trainer.
    learnt = Word(4)
    """``number`` of the newest batch that a published model has learnt from."""
    opt_steps = Word(5)
    """Opt steps of the first model that has learnt from it."""

    def __init__(self, buffer: mmap.mmap) -> None:
        super().__init__(buffer)
        self._parent = memoryview(buffer)[_PARENT_AT : _PARENT_AT + PARENT_BYTES]

    def follow(self, actor: int, rows: range, trace_parent: str) -> None:
        """Follow a batch from now on; its trace parent must be valid."""
        self.actor, self.first, self.end = actor, rows.start, rows.stop
        self._parent[:] = trace_parent.encode()
        fence()
        self.number += 1

    @property
    def trace_parent(self) -> str:
        """The trace parent that came with the batch."""
        return bytes(self._parent).decode()

    def note_learnt(self, number: int, opt_steps: int) -> None:
        """Note the model that has learnt from batch ``number``."""
        self.opt_steps = opt_steps
        fence()
        self.learnt = number

    @classmethod
    def open(cls, directory: Path, *, create: bool) -> Self:
        """The followed batch of a run; ``create`` forgets the batch of an earlier life of the run.

        Raises:
            RunDirectoryError: the file cannot be made or opened.
        """
        path = directory / "followed"
        if create:
            path.unlink(missing_ok=True)
        return cls(map_file(path, _PARENT_AT + PARENT_BYTES, create=create))


class BatchTraces:
    """Records when traced batches are stored, and tells their actors which model has learnt from them.

    One batch at a time is followed through the trainer; of the others, only the storing is recorded.
    """

    def __init__(self, directory: Path) -> None:
        self._tracing = open_tracing("ingest")
        self._followed = FollowedBatch.open(directory, create=False) if self._tracing is not None else None
        self._followed_since = 0.0
        self._told = 0
        """Number of the newest batch whose actor has been told."""

    def note_stored(self, actor: int, trace_parent: str, rows: range, began: float) -> None:
        """Note that a batch is stored.

        Args:
            actor: its row of the actor table.
            trace_parent: as it came with the batch.
            rows: absolute indices of its rows.
            began: when ingest began to read the batch, on the monotonic clock.
        """
        if self._tracing is None or self._followed is None or not is_trace_parent(trace_parent):
            return
        now = time.monotonic()
        self._tracing.record("store", trace_parent, began, now, rows=len(rows))
        if self._told == self._followed.number or now > self._followed_since + FOLLOW_SECONDS:
            self._told = self._followed.number
            self._followed.follow(actor, rows, trace_parent)
            self._followed_since = now

    def take_learnt(self, actor: int | None, newest_opt_steps: int) -> str:
        """The trace parent of the actor's batch from which the newest model has learnt; returned once, else empty."""
        followed = self._followed
        if followed is None or self._told == followed.number or followed.learnt != followed.number:
            return ""
        if followed.actor != actor or newest_opt_steps < followed.opt_steps:
            return ""
        self._told = followed.number
        return followed.trace_parent
