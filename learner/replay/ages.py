"""How old the oldest row of a replay is, from a few moments that are noted while the replay fills."""

from __future__ import annotations

from collections import deque

N_NOTES = 256
"""The most moments that are kept."""


class RowAges:
    """Knows when the oldest row came. The time it tells is too early by at most one interval between two notes.

    The interval is the time between two calls of ``note``, or the time in which a 256th of the replay came, if that
    time is longer.

    Args:
        capacity: rows kept.
        end: rows ever stored before; all of them count as if they came now.
        now: seconds, on the same clock as in all later calls.
    """

    def __init__(self, capacity: int, end: int, now: float) -> None:
        self._grain = max(1, capacity // N_NOTES)
        self._notes = deque([(end, now)])  # (index, time): rows from this index on came at this time or later.

    def __len__(self) -> int:
        """The number of moments that are kept."""
        return len(self._notes)

    def note(self, end: int, now: float) -> None:
        """Note that the next row to come has absolute index ``end``, at ``now`` seconds."""
        newest = self._notes[-1][0]
        if end == newest:
            self._notes[-1] = end, now
        elif end >= newest + self._grain:
            self._notes.append((end, now))

    def came_at(self, first: int) -> float:
        """The time in seconds at which the oldest row that is kept came; ``first`` is its absolute index."""
        while len(self._notes) > 1 and self._notes[1][0] <= first:
            self._notes.popleft()
        return self._notes[0][1]
