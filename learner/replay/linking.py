"""Linking the rows of a batch to one another and to the last rows of their lanes.

A row that begins an episode continues the last row of its lane if that last row is final. Any other row continues the
last row if that last row is not final. A lane is therefore one chain through all of its episodes. The chain is broken
where an episode was lost, where the actor dropped rows, and where another actor process began. Rows that no honest
actor sends, for example a row in the middle of an episode after a final row, are stored without a link.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from common.data import FINAL, FIRST, LANE, Array, Items

MAX_LANES: Final = 1 << 24
"""Lanes whose last rows are kept, of all actor processes together: 144 MiB."""
_NONE: Final = -1
_NOTHING: Final = np.empty(0, np.int64)
_FIRST_ROW: Final = np.zeros(1, np.int64)
_count = np.count_nonzero  # Python finds this name faster than an attribute; it is several times as fast as ``all``.
Slots = slice | Array
"""Positions in an array: a slice, or an array of int64."""


class BatchLinks(NamedTuple):
    """The links of a batch of n rows that has not been stored yet."""

    previous: Array
    """``[n]`` uint32."""
    next: Array
    """``[n]`` uint32: the links within the batch; 0 where the next row of the lane has not come."""
    before: Array | int
    """Absolute indices of the earlier rows that the batch continues, ``[k]`` int64."""
    offsets: Array | int
    """The distance from each of these rows to the row that continues it, ``[k]`` uint32."""
    new_steps: int
    """Steps that can be drawn as soon as the batch counts, because their next rows are in it."""

    @classmethod
    def of(cls, previous: Array, first: Array, start: int, oldest: int) -> BatchLinks:
        """The links of a batch whose ``previous`` is known.

        Args:
            previous: ``[n]`` uint32.
            first: which rows begin an episode, ``[n]`` bool.
            start: absolute index of the batch's first row.
            oldest: the batch is not linked to rows below this index.
        """
        rows = np.arange(start, start + len(previous))
        before = rows - previous
        kept = np.where(before >= oldest, previous, np.uint32(0))
        following = np.zeros_like(kept)
        within, earlier = (kept != 0) & (before >= start), (kept != 0) & (before < start)
        following[before[within] - start] = kept[within]
        new_steps = int(np.count_nonzero((kept != 0) > first))
        return cls(kept, following, before[earlier], kept[earlier], new_steps)


class LastRows(NamedTuple):
    """The last rows of m lanes."""

    lanes: Slots | int
    rows: Array | int
    """Absolute indices, ``[m]`` int64."""
    final: Array | bool
    """Whether they are final, ``[m]`` bool."""


class LaneEnds:
    """The last row of each lane of one actor process. Its arrays grow to the highest lane."""

    def __init__(self) -> None:
        self._rows: Array = np.empty(0, np.int64)
        self._final: Array = np.empty(0, np.bool_)

    def __len__(self) -> int:
        """Lanes for which there is room."""
        return len(self._rows)

    def note(self, last: LastRows) -> None:
        """Keep these rows as the last rows of their lanes; if several are of one lane, the last of them counts."""
        self._rows[last.lanes], self._final[last.lanes] = last.rows, last.final

    def find(self, rows: Array, lanes: Array, final: Array) -> None:
        """Note the last rows of all lanes among these rows, all ``[n]``, in the order of time."""
        self._make_room(int(lanes.max(initial=0)))
        self.note(LastRows(lanes, rows, final))

    def link(self, items: Items, start: int, oldest: int) -> tuple[BatchLinks, LastRows]:
        """Link the rows of a batch to one another and to the last rows of their lanes.

        Args:
            items: with columns ``first``, ``final`` and ``lane``, ``[n]`` with n above 0.
            start: absolute index of the batch's first row.
            oldest: the batch is not linked to rows below this index: they no longer count.

        Returns:
            The links, and the last row of each lane in the batch, for ``note`` once the batch is stored.
        """
        first, final, lanes = items[FIRST.name], items[FINAL.name], items[LANE.name]
        n = len(lanes)
        if n == 1 or (lanes[0] == lanes[-1] and _count(lanes == lanes[0]) == n):
            return self._link_lane(int(lanes[0]), first, final, start, oldest)
        if period := _find_period(lanes):
            previous, following = _make_offsets(period, first, final)
            heads: Slots = slice(period)
            tails: Slots = slice(n - period, n)
        else:
            previous, following, heads, tails = _link_within(lanes, first, final)
        rows = np.arange(start, start + n)
        at = _place_lanes(lanes[heads])
        self._make_room(at.stop - 1 if isinstance(at, slice) else int(at.max()))
        before = self._rows[at]
        linked = (self._final[at] == first[heads]) & (before >= oldest)
        offsets = ((rows[heads] - before) * linked).astype(np.uint32)
        previous[heads] = offsets
        new_steps = int(_count((previous != 0) > first))
        links = BatchLinks(previous, following, before[linked], offsets[linked], new_steps)
        return links, LastRows(_place_lanes(lanes[tails]), rows[tails], final[tails])

    def count_unfinished(self, items: Items, previous: Array) -> int:
        """How many episodes of a batch follow an episode without a final row; call it between ``link`` and ``note``.

        An episode without a final row was lost with its environment, or its client sends no final rows. In most batches
        all rows that begin episodes are linked, so the first test is enough.

        Args:
            items: with columns ``first`` and ``lane``, ``[n]``.
            previous: the batch's links, ``[n]``.
        """
        first = items[FIRST.name]
        if not _count(first > (previous != 0)):
            return 0
        at = np.flatnonzero(first & (previous == 0))
        lanes, heads, number = np.unique(items[LANE.name], return_index=True, return_inverse=True)
        goes_on = (self._rows[lanes] != _NONE) & ~self._final[lanes]  # [m], before the batch
        return int(_count(goes_on[number[at]] | (heads[number[at]] != at)))

    def _link_lane(self, lane: int, first: Array, final: Array, start: int, oldest: int) -> tuple[BatchLinks, LastRows]:
        """Link rows of one lane, as ``link`` does; with plain numbers this takes a third of the time."""
        n = len(first)
        previous, following = _make_offsets(1, first, final)
        self._make_room(lane)
        before, is_linked = self._rows.item(lane), self._final.item(lane) == first.item(0)
        offset = start - before if is_linked and before >= oldest else 0
        previous[0] = offset
        new_steps = int(_count((previous != 0) > first))
        last = LastRows(lane, start + n - 1, final.item(n - 1))
        if not offset:
            return BatchLinks(previous, following, _NOTHING, _NOTHING, new_steps), last
        return BatchLinks(previous, following, before, offset, new_steps), last

    def _make_room(self, lane: int) -> None:
        n = len(self._rows)
        if lane >= n:
            size = max(lane + 1, min(2 * n, 1 << 16))
            rows, final = np.full(size, _NONE), np.zeros(size, np.bool_)  # No memory beyond the new arrays.
            rows[:n], final[:n] = self._rows, self._final
            self._rows, self._final = rows, final


def _place_lanes(lanes: Array) -> Slots:
    """The places of different lanes ``[m]`` in an array by lane; a slice if the lanes are neighbours in order."""
    low, high = int(lanes[0]), int(lanes[-1])
    n = len(lanes)
    if high - low == n - 1 and (n == 1 or not _count(lanes[1:] <= lanes[:-1])):
        return slice(low, high + 1)
    return lanes.astype(np.int64)


def _find_period(lanes: Array) -> int:
    """The number of rows after which the lanes ``[n]`` repeat, in the same ascending order.

    Most batches with several lanes are rounds in which every lane has a step, so their lanes repeat. The result is n if
    no lane comes twice, and 0 if the lanes do not repeat in this order.
    """
    n, again = len(lanes), lanes[1:] == lanes[0]
    period = int(again.argmax()) + 1
    if not again[period - 1]:
        period = n
    if _count(lanes[period:] != lanes[: n - period]) or _count(lanes[1:period] <= lanes[: period - 1]):
        return 0
    return period


def _make_offsets(period: int, first: Array, final: Array) -> tuple[Array, Array]:
    """Link the rows of a batch to one another, where each lane comes again after ``period`` rows.

    Returns:
        ``previous`` and ``next``, ``[n]``. The next row's ``previous`` lies ``period`` further, so both are parts of
        one array.
    """
    n = len(first)
    offsets = np.zeros(n + period, np.uint32)
    if period == 1:
        offsets[1:n] = final[:-1] == first[1:]
    else:
        offsets[period:n] = (final[:-period] == first[period:]) * np.uint32(period)
    return offsets[:n], offsets[period:]


def _link_within(lanes: Array, first: Array, final: Array) -> tuple[Array, Array, Array, Array]:
    """Link the rows of a batch to one another, where the lanes come in any order.

    Returns:
        ``previous`` and ``next``, ``[n]``, and the positions of each lane's first and last row in the batch, ``[m]``.
    """
    previous, following = np.zeros(len(lanes), np.uint32), np.zeros(len(lanes), np.uint32)
    order = lanes.argsort(kind="stable")
    by_lane = lanes.take(order)
    is_same = by_lane[1:] == by_lane[:-1]
    ends = np.flatnonzero(~is_same)
    is_same &= final.take(order[:-1]) == first.take(order[1:])
    offsets = (order[1:] - order[:-1]).astype(np.uint32) * is_same
    previous[order[1:]] = offsets
    following[order[:-1]] = offsets
    heads, tails = order[np.concatenate([_FIRST_ROW, ends + 1])], order[np.append(ends, len(order) - 1)]
    return previous, following, heads, tails
