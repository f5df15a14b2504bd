"""The traced batch that the trainer follows until it has learnt from it, in memory that it shares with ingest."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from common.process.tracing import PARENT_BYTES
from common.shared.mapped import Word, Words, fence, map_file

_PARENT_AT: Final = 64


@dataclass(frozen=True)
class TracedBatch:
    """A batch that carries a trace.

    Args:
        actor: row of its actor in the actor table.
        first: absolute index of its first row.
        end: absolute index after its last row.
        trace_parent: as it came with the batch.
    """

    actor: int
    first: int
    end: int
    trace_parent: str


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
    _actor = Word(1)
    _first = Word(2)
    _end = Word(3)
    # Written by the trainer.
    learnt = Word(4)
    """``number`` of the newest batch that a published model has learnt from."""
    opt_steps = Word(5)
    """Opt steps of the first model that has learnt from it."""

    def __init__(self, buffer: mmap.mmap) -> None:
        super().__init__(buffer)
        self._parent = memoryview(buffer)[_PARENT_AT : _PARENT_AT + PARENT_BYTES]

    def follow(self, batch: TracedBatch) -> None:
        """Follow a batch from now on; its trace parent must be valid."""
        self._actor, self._first, self._end = batch.actor, batch.first, batch.end
        self._parent[:] = batch.trace_parent.encode()
        fence()
        self.number += 1

    def batch(self) -> TracedBatch:
        """The batch that is followed."""
        return TracedBatch(self._actor, self._first, self._end, bytes(self._parent).decode())

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
