"""Links between the rows of a lane, kept as offsets in two rings beside the columns.

``previous`` of row i is how many rows back the row before it in its lane lies; 0: there is none. It is computed when
row i is stored, never changes, and counts for the checksum of its batch. ``next`` of row i is how many rows ahead the
row after it lies; 0: not known yet. It follows from ``previous``, as ``next[i - previous[i]] = previous[i]``, and is
written when the later row counts.

A row continues the last row of its lane if that row is final and this one begins an episode, or neither is so. A lane
is therefore one chain through all of its episodes. The chain is broken where an episode was lost, where the actor
dropped rows, and where another actor process began. Rows that no honest actor sends, such as a row in the middle of an
episode after a final row, are stored without a link.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from common.data import FINAL, FIRST, LANE, Array, Column, Items
from learner.replay.ring import MapFile, map_ring

OFFSET: Final = Column("offset", "<u4")
CHUNK: Final = 1 << 18
"""Rows looked at together where all rows are."""
MAX_LANES: Final = 1 << 24
"""Lanes whose last rows are kept, of all actor processes together: 144 MiB."""
_NONE: Final = -1


class BatchLinks(NamedTuple):
    """The links of a batch of n rows that has not been stored yet."""

    previous: Array
    """``[n]`` uint32."""
    next: Array
    """``[n]`` uint32: the links within the batch; 0 where the next row of the lane has not come."""
    before: Array
    """Absolute indices of the earlier rows that the batch continues, ``[k]`` int64."""
    offsets: Array
    """How far ahead each of them is continued, ``[k]`` uint32."""
    new_steps: int
    """Steps that can be drawn as soon as the batch counts, because their next rows are in it."""
    lanes: Array
    """The lanes that the batch has rows of, ``[m]``, each once."""
    last: Array
    """Position of each of these lanes' last row in the batch, ``[m]`` int64."""

    @classmethod
    def of(cls, previous: Array, first: Array, start: int, oldest: int) -> BatchLinks:
        """The links of a batch of which ``previous`` is known; it names no lanes.

        Args:
            previous: ``[n]`` uint32.
            first: which rows begin an episode, ``[n]`` bool.
            start: absolute index of the batch's first row.
            oldest: earlier rows below this index are not linked to.
        """
        rows = np.arange(start, start + len(previous))
        before = rows - previous
        kept = np.where(before >= oldest, previous, np.uint32(0))
        following = np.zeros_like(kept)
        within, earlier = (kept != 0) & (before >= start), (kept != 0) & (before < start)
        following[before[within] - start] = kept[within]
        new_steps = int(np.count_nonzero((kept != 0) > first))
        return cls(kept, following, before[earlier], kept[earlier], new_steps, *np.empty((2, 0), np.int64))


class Links:
    """The two rings of a replay of rows.

    Args:
        mapped: maps a file.
        directory: where the two files are.
        columns: the rings of the columns.
        n_slots: rows that there is room for.

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

    def connect(self, rows: Array, offsets: Array) -> None:
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
        """Compute ``next`` of the rows ``[first, end)`` anew, from ``previous``."""
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


class LaneEnds:
    """The last row of each lane of one actor process. Its arrays grow to the highest lane."""

    def __init__(self) -> None:
        self._rows: Array = np.empty(0, np.int64)
        self._final: Array = np.empty(0, np.bool_)

    def __len__(self) -> int:
        """Lanes for which there is room."""
        return len(self._rows)

    def set(self, lanes: Array, rows: Array, final: Array) -> None:
        """Note the absolute indices of rows and whether these are final, all ``[m]``: of each lane the last counts."""
        self._make_room(lanes)
        self._rows[lanes], self._final[lanes] = rows, final

    def link(self, items: Items, rows: int, start: int, oldest: int) -> BatchLinks:
        """Link the rows of a batch to one another and to the last rows of their lanes; nothing is changed by it.

        Args:
            items: with columns ``first``, ``final`` and ``lane``, ``[rows]``.
            rows: 1 or more.
            start: absolute index of the batch's first row.
            oldest: earlier rows below this index are not linked to: they no longer count.
        """
        first, final, lanes = items[FIRST.name], items[FINAL.name], items[LANE.name]
        previous, following = np.zeros(rows, np.uint32), np.zeros(rows, np.uint32)
        if rows == 1 or (lanes[0] == lanes[-1] and (lanes == lanes[0]).all()):
            heads, tails = _FIRST_ROW, np.array((rows - 1,))
            if rows > 1:
                previous[1:] = following[:-1] = final[:-1] == first[1:]
        elif (lanes[1:] > lanes[:-1]).all():
            heads = tails = np.arange(rows)
        else:
            heads, tails = _link_within(lanes, first, final, previous, following)
        lanes = lanes[heads]
        before, before_final = self._last_rows(lanes)
        linked = (before >= oldest) & (before_final == first[heads])
        if not linked.all():
            heads, before = heads[linked], before[linked]
        offsets = (heads - before + start).astype(np.uint32)
        previous[heads] = offsets
        new_steps = int(np.count_nonzero((previous != 0) > first))
        return BatchLinks(previous, following, before, offsets, new_steps, lanes, tails)

    def _last_rows(self, lanes: Array) -> tuple[Array, Array]:
        """Absolute indices of the lanes' last rows and whether they are final, ``[m]``; -1 where there is none."""
        self._make_room(lanes)
        return self._rows[lanes], self._final[lanes]

    def _make_room(self, lanes: Array) -> None:
        n, needed = len(self._rows), int(lanes[-1] if len(lanes) == 1 else lanes.max(initial=0)) + 1
        if needed > n:
            more = max(needed, min(2 * n, 1 << 16)) - n
            self._rows = np.concatenate([self._rows, np.full(more, _NONE)])
            self._final = np.concatenate([self._final, np.zeros(more, np.bool_)])


_FIRST_ROW: Final = np.zeros(1, np.int64)


def _link_within(lanes: Array, first: Array, final: Array, previous: Array, following: Array) -> tuple[Array, Array]:
    """Link the rows of a batch to one another in ``previous`` and ``following``, ``[n]``.

    Returns:
        The positions of each lane's first row and of its last row in the batch, in the same order of lanes, ``[m]``.
    """
    order = lanes.argsort(kind="stable")
    by_lane = lanes[order]
    begins = np.flatnonzero(by_lane[1:] != by_lane[:-1]) + 1
    offsets = order[1:] - order[:-1]
    offsets *= final[order[:-1]] == first[order[1:]]
    offsets[begins - 1] = 0
    previous[order[1:]] = offsets
    following[order[:-1]] = offsets
    return order[np.concatenate([_FIRST_ROW, begins])], order[np.append(begins - 1, len(order) - 1)]


def _chunks(first: int, end: int) -> Iterator[Array]:
    """The absolute indices ``[first, end)``, a part after another, ``[n]`` int64."""
    for start in range(first, end, CHUNK):
        yield np.arange(start, min(start + CHUNK, end))
