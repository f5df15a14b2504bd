"""How far a replay was when all of it was on disk: what a run goes back to, at least, after a power cut."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from common.errors import CheckpointError
from learner.replay.memory import ReplayMemory
from learner.shared.mapped import fence

Cursor = tuple[int, int, int, int]
"""Incarnation, its highest seq that is stored, and where items and frames ended then."""
_TRIES: Final = 8


@dataclass(frozen=True)
class Watermark:
    """A replay at one moment, between two batches.

    Args:
        oldest: absolute index of the oldest item.
        committed: items ever stored.
        frames_end: frames ever stored.
        batches: batches ever stored.
        cursors: of all actor processes that had stored anything.
    """

    oldest: int
    committed: int
    frames_end: int
    batches: int
    cursors: list[Cursor]

    @classmethod
    def of_nothing(cls, memory: ReplayMemory) -> Watermark:
        """That of a replay before its first batch."""
        return cls(memory.began, memory.began, 0, 0, [])

    @classmethod
    def of(cls, memory: ReplayMemory) -> Watermark:
        """The present one; a writer may be going on meanwhile.

        Raises:
            CheckpointError: the writer goes round the whole log while it is read.
        """
        for _ in range(_TRIES):
            found = cls._look(memory)
            if found is not None:
                return found
        raise CheckpointError(
            f"{memory.directory}: a log of {memory.log.length} batches is overwritten while it is read"
        )

    @classmethod
    def _look(cls, memory: ReplayMemory) -> Watermark | None:
        oldest, before = memory.first(), int(memory.header.batches)
        cursors = {
            int(row["incarnation"]): _as_cursor(row.tolist()) for row in memory.cursors[memory.cursors["seq"] > 0]
        }
        fence()
        number = int(memory.header.batches)
        if not number:
            return cls.of_nothing(memory)
        # The writer may have changed cursors while they were read. Whose those are, the log of that time says.
        recent = [memory.log.read(n) for n in range(max(0, before - 1), number)]
        end = recent[-1]
        if None in recent or end is None:
            return None
        cursors |= {b.incarnation: (b.incarnation, b.seq, b.end, b.frames_end) for b in recent if b and b.incarnation}
        return cls(oldest, end.end, end.frames_end, number, list(cursors.values()))

    def to_json(self) -> str:
        """As a text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Watermark:
        """From such a text.

        Raises:
            ValueError, LookupError, TypeError: it is none.
        """
        values = json.loads(text)
        return cls(**{**values, "cursors": [_as_cursor(cursor) for cursor in values["cursors"]]})


def _as_cursor(values: list[int]) -> Cursor:
    incarnation, seq, end, frames_end = values
    return incarnation, seq, end, frames_end
