"""How old the items of a replay are, from a few moments that are noted while it fills."""

from __future__ import annotations

from collections import deque

N_MARKS = 256


class ItemAges:
    """Knows when an item came, at most one look or a 256th of the replay too early.

    Args:
        capacity: items kept.
        end: items there are already; they count as come now.
        now: seconds, on the clock of all calls.
    """

    def __init__(self, capacity: int, end: int, now: float) -> None:
        self._grain = max(1, capacity // N_MARKS)
        self._marks = deque([(end, now)])  # From this index on, items came at this time or later.

    def note(self, end: int, now: float) -> None:
        """The next item to come is number ``end``."""
        newest = self._marks[-1][0]
        if end == newest:
            self._marks[-1] = end, now
        elif end >= newest + self._grain:
            self._marks.append((end, now))

    def came_at(self, first: int) -> float:
        """When item ``first`` came, the oldest that is kept."""
        while len(self._marks) > 1 and self._marks[1][0] <= first:
            self._marks.popleft()
        return self._marks[0][1]
