"""Links between the rows of a lane, kept as offsets in two rings beside the columns.

``previous`` of row i is the distance back to the row before it in its lane; 0: there is none. It is computed when row i
is stored (``learner.replay.linking``), never changes, and is part of the checksum of its batch. ``next`` of row i is
the distance ahead to the row after it; 0: not known yet. It follows from ``previous``, as
``next[i - previous[i]] = previous[i]``, and is written when the later row counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from common.data import FINAL, Array, Column, Items
from learner.replay.ring import MapFile, map_ring

OFFSET: Final = Column("offset", "<u4")
CHUNK: Final = 1 << 18
"""A pass over all rows reads this many rows at a time."""


class Links:
    """The two rings of a replay of rows.

    Raises:
        RunDirectoryError: the files cannot be made or opened.
    """

    def __init__(self, mapped: MapFile, directory: Path, columns: Items, n_slots: int) -> None:
        mapped_here = partial(map_ring, mapped, column=OFFSET, length=n_slots)
        self.previous = mapped_here(path=directory / "links-previous")
        """``[n_slots]`` uint32."""
        self.next = mapped_here(path=directory / "links-next")
        """``[n_slots]`` uint32."""
        self._final, self._n_slots = columns[FINAL.name], n_slots

    def connect(self, rows: Array | int, offsets: Array | int) -> None:
        """Set ``next`` of rows with these absolute indices ``[k]``."""
        self.next[rows % self._n_slots] = offsets

    def connect_batch(self, start: int, end: int) -> None:
        """Set ``next`` of all rows that the rows ``[start, end)`` continue. It may be set already."""
        for rows in _chunks(start, end):
            offsets = self.previous[rows % self._n_slots]
            linked = offsets != 0
            self.connect(rows[linked] - offsets[linked], offsets[linked])

    def cut(self, first: int, end: int) -> None:
        """Remove the links of the rows ``[first, end)`` that lead to ``end`` or beyond."""
        for rows in _chunks(first, end):
            slots = rows % self._n_slots
            self.next[slots[rows + self.next[slots] >= end]] = 0

    def rebuild(self, first: int, end: int) -> None:
        """Compute ``next`` of the rows ``[first, end)`` again, from ``previous``."""
        for rows in _chunks(first, end):
            self.next[rows % self._n_slots] = 0
        for rows in _chunks(first, end):
            offsets = self.previous[rows % self._n_slots]
            linked = (offsets != 0) & (rows - offsets >= first)
            self.connect(rows[linked] - offsets[linked], offsets[linked])

    def use_private_next(self) -> None:
        """Keep ``next`` in memory of this process from now on, for files that are only read."""
        self.next = np.zeros(self._n_slots, np.uint32)

    def count_steps(self, first: int, end: int) -> int:
        """How many of the rows ``[first, end)`` are not final and have a next row."""
        slot, n = first % self._n_slots, end - first
        beyond = slot + n - self._n_slots
        if beyond <= 0:
            return self._count_in_slots(slot, slot + n)
        return self._count_in_slots(slot, self._n_slots) + self._count_in_slots(0, beyond)

    def _count_in_slots(self, begin: int, end: int) -> int:
        return int(np.count_nonzero((self.next[begin:end] != 0) > self._final[begin:end]))

    def find_open(self, first: int, end: int) -> Array:
        """The rows ``[first, end)`` without a next row, ascending: the last row of each lane is among them."""
        found = [rows[self.next[rows % self._n_slots] == 0] for rows in _chunks(first, end)]
        return np.concatenate(found) if found else np.empty(0, np.int64)


def _chunks(first: int, end: int) -> Iterator[Array]:
    """The absolute indices ``[first, end)``, one part after another, each ``[n]`` int64."""
    for start in range(first, end, CHUNK):
        yield np.arange(start, min(start + CHUNK, end))
