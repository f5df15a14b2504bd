"""How far each row is from the beginning of its episode."""

from __future__ import annotations

import numpy as np

from common.data import FIRST, Array
from learner.replay.view import Rows


class Positions:
    """The first row of each row's episode, and the distance from it, computed once for each row.

    A row gets no number if the first row of its episode had been overwritten before, or was never linked to it.
    """

    def __init__(self) -> None:
        self._begins, self._distance = np.empty(0, np.int64), np.empty(0, np.int64)  # Rings; -1: not numbered.
        self._end = 0

    def find(self, rows: Rows, index: Array) -> tuple[Array, Array]:
        """The absolute indices of the episodes' first rows ``[n]``, -1 if not known, and the distances from them."""
        self._make_room(rows)
        if rows.end > self._end:
            self._number(rows, np.arange(max(self._end, rows.first), rows.end))
            self._end = rows.end
        slots = index % len(self._begins)
        return self._begins[slots], self._distance[slots]

    def _make_room(self, rows: Rows) -> None:
        if rows.end - rows.first > len(self._begins):
            size, self._end = 2 * (rows.end - rows.first), 0
            self._begins, self._distance = np.full(size, -1), np.zeros(size, np.int64)

    def _number(self, rows: Rows, new: Array) -> None:
        """Number new rows ``[n]`` that follow one another; earlier rows have been numbered."""
        start, before = int(new[0]), rows.previous(new)
        is_first = rows.take(FIRST.name, new)
        is_root = is_first | (before < 0)
        reached, distance = np.where(is_root, new, before), np.where(is_root, 0, 1)
        # Each round doubles the distance that every row has been followed back, until all leave ``new`` or begin there.
        while True:
            inside = reached >= start
            at = np.where(inside, reached - start, 0)
            further = np.where(inside, reached[at], reached)
            if (further == reached).all():
                break
            distance += np.where(inside, distance[at], 0)
            reached = further
        earlier = np.flatnonzero(reached < start)
        slots = reached[earlier] % len(self._begins)
        begins = np.where(is_first[np.maximum(reached - start, 0)], reached, -1)
        begins[earlier] = self._begins[slots]
        distance[earlier] += self._distance[slots]
        slots = new % len(self._begins)
        self._begins[slots], self._distance[slots] = begins, distance
