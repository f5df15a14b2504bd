"""Uniform sampling with replacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from common.data import Array, Items, Snapshot
from learner.replay.shared_buffer import SharedReplay

AHEAD: Final = 16
"""Batches gathered at once, at most."""
AHEAD_BYTES: Final = 256 << 10
"""The most bytes that two or more batches gathered at once may take."""
STALE: Final = 0.01
"""Gathered batches are dropped once new items exceed this share of the items there were when they were drawn."""


class UniformReplay(SharedReplay):
    """A ``ReplayBuffer`` over shared memory that draws every item with the same probability.

    Several small batches are gathered ahead at once: to begin a gather takes longer than to copy the rows of a small
    batch, above all after an opt step, which has filled the processor's caches. So a batch may lack the newest
    hundredth of the items.
    """

    _ahead: _Ahead | None = None

    def batch(self, size: int) -> Items:
        ahead = self._ahead
        if ahead is None or not ahead.serves(size, self._memory.committed, len(self._memory.excluded)):
            ahead = self._ahead = self._gather_ahead(size)
        items, self.last_drawn = ahead.next()
        self._sampled += size
        return items

    def _gather_ahead(self, size: int) -> _Ahead:
        n = max(1, min(AHEAD, AHEAD_BYTES // (size * self._memory.schema.row_bytes)))
        if self._ahead is not None and self._ahead.size != size:
            n = 1  # A caller that changes between sizes would throw away the batches of the other size each time.
        first, end = self._reader.bounds()
        n_excluded = len(self._memory.excluded)
        drawn, items = self._reader.take(self._draw, n * size)
        return _Ahead(items, drawn["index"], size, n * size, end + int(STALE * (end - first)), n_excluded)

    def draw(self, size: int) -> tuple[Array, Items]:
        return self._draw(size)["index"], {}

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Do nothing: every item stays as likely as any other."""

    def state(self) -> Snapshot:
        state, ahead = super().state(), self._ahead
        if ahead is None:
            return state
        left = {name: column[ahead.taken :] for name, column in ahead.items.items()}
        values = {"size": ahead.size, "left": ahead.gathered - ahead.taken, "stale_at": ahead.stale_at}
        return Snapshot({**state.values, "ahead": values}, left)

    def restore(self, state: Snapshot) -> None:
        super().restore(state)
        ahead = state.values.get("ahead")
        # A state does not say which items are in its batches: if any items are excluded, none of the batches is used.
        if ahead and not len(self._memory.excluded):
            names = (column.name for column in self._memory.schema.columns)  # A checkpoint file loses their order.
            items = {name: state.arrays[name].copy() for name in names}
            unknown = np.empty(0, np.int64)
            self._ahead = _Ahead(items, unknown, ahead["size"], ahead["left"], ahead["stale_at"], n_excluded=0)

    def _draw(self, size: int) -> Items:
        first, end = self._reader.bounds()
        index = self._rng.integers(first, end, size)
        while len(self._memory.excluded) and len(bad := np.flatnonzero(self._memory.is_excluded(index))):
            index[bad] = self._rng.integers(first, end, len(bad))
        return {"index": index}


@dataclass
class _Ahead:
    """Several batches of ``size`` items that have been gathered, one after another in ``items``.

    Args:
        items: columns ``[gathered, *shape]``.
        index: their absolute indices ``[gathered]``; empty where they are not known.
        size: items in a batch.
        gathered: items in all batches.
        stale_at: items ever stored at which the batches are no longer used.
        n_excluded: number of excluded items when the batches were drawn; once it is higher, the batches are no longer
            used.
        taken: items given so far.
    """

    items: Items
    index: Array
    size: int
    gathered: int
    stale_at: int
    n_excluded: int
    taken: int = 0

    def serves(self, size: int, inserted: int, n_excluded: int) -> bool:
        """Whether there is another batch of this size, and neither new nor excluded items forbid its use."""
        is_left = size == self.size and self.taken < self.gathered
        return is_left and inserted <= self.stale_at and n_excluded == self.n_excluded

    def next(self) -> tuple[Items, Array]:
        """The next batch, and the indices of its items."""
        begin, self.taken = self.taken, self.taken + self.size
        items = {name: column[begin : self.taken] for name, column in self.items.items()}
        return items, self.index[begin : self.taken]
