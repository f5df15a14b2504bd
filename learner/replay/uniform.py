"""Uniform sampling with replacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from common.data import Array, Items, Snapshot
from learner.replay.reader import Draws
from learner.replay.shared_buffer import SharedReplay

AHEAD: Final = 16
"""The most batches that are gathered at once."""
AHEAD_BYTES: Final = 512 << 10
"""The most bytes that two or more batches gathered at once may take."""
STALE: Final = 0.01
"""Gathered batches are dropped once new rows exceed this share of the rows there were when they were drawn."""


class UniformReplay(SharedReplay):
    """A ``ReplayBuffer`` over shared memory that begins draws at every row with the same probability.

    Several small batches are gathered ahead at once: to begin a gather takes longer than to copy the rows of a small
    batch, above all after an opt step, which has filled the processor's caches. So a batch may lack the newest
    hundredth of the rows.
    """

    _ahead: _Ahead | None = None
    _draw_bytes = 0
    """Bytes of one draw; 0 before the first draw."""

    def batch(self, size: int) -> Items:
        ahead = self._ahead
        if ahead is None or not ahead.serves(size, self._memory.committed, len(self._memory.excluded)):
            ahead = self._ahead = self._gather_ahead(size)
        batch, self.last_drawn = ahead.next()
        self._sampled += self._view.count_steps(batch, size)
        return batch

    def _gather_ahead(self, size: int) -> _Ahead:
        n = max(1, min(AHEAD, AHEAD_BYTES // (size * self._draw_bytes))) if self._draw_bytes else 1
        if self._ahead is not None and self._ahead.size != size:
            n = 1  # A caller that changes between sizes would throw away the batches of the other size each time.
        n_excluded = len(self._memory.excluded)
        draws, batch = self._reader.gather(self.make_draws, n * size)
        self._draw_bytes = sum(column.nbytes for column in batch.values()) // (n * size)
        stale_at = self._reader.end + int(STALE * (self._reader.end - self._reader.first))
        return _Ahead(batch, draws.index, size, n * size, stale_at, n_excluded)

    def draw(self, size: int) -> tuple[Array, Items]:
        return self._rng.integers(self._reader.first, self._reader.end, size), {}

    def make_draws(self, size: int) -> Draws:
        self._reader.look()
        if len(self._memory.excluded):
            return super().make_draws(size)
        # Draws can begin at nearly all rows, so it is enough to look at a few more rows than are needed.
        tries, _ = self.draw(size + size // 16 + 4)
        index, plan = self._view.choose(self._reader, tries, size)
        return Draws(index, plan, {}) if len(index) == size else super().make_draws(size)

    def state(self) -> Snapshot:
        state, ahead = super().state(), self._ahead
        values = {**state.values, "draw_bytes": self._draw_bytes}
        if ahead is None:
            return Snapshot(values)
        left = {name: column[ahead.taken :] for name, column in ahead.batch.items()}
        drawn = {"size": ahead.size, "left": ahead.gathered - ahead.taken, "stale_at": ahead.stale_at}
        return Snapshot({**values, "ahead": {**drawn, "columns": list(left)}}, left)

    def restore(self, state: Snapshot) -> None:
        super().restore(state)
        ahead, self._draw_bytes = state.values.get("ahead"), state.values.get("draw_bytes", 0)
        # A state does not say which rows are in its batches: if any rows are excluded, none of the batches is used.
        if ahead and not len(self._memory.excluded):
            batch = {name: state.arrays[name].copy() for name in ahead["columns"]}  # Files do not keep their order.
            unknown = np.empty(0, np.int64)
            self._ahead = _Ahead(batch, unknown, ahead["size"], ahead["left"], ahead["stale_at"], n_excluded=0)


@dataclass
class _Ahead:
    """Several batches of ``size`` draws that have been gathered, one after another in ``batch``.

    Args:
        batch: columns ``[gathered, …]``.
        index: the rows at which the draws begin ``[gathered]``; empty if they are not known.
        size: draws in a batch.
        gathered: draws in all batches.
        stale_at: rows ever stored at which the batches are no longer used.
        n_excluded: number of excluded rows when the batches were drawn; once it is higher, the batches are no longer
            used.
        taken: draws given so far.
    """

    batch: Items
    index: Array
    size: int
    gathered: int
    stale_at: int
    n_excluded: int
    taken: int = 0

    def serves(self, size: int, inserted: int, n_excluded: int) -> bool:
        """Whether there is another batch of this size, and no new or excluded rows forbid its use."""
        is_left = size == self.size and self.taken < self.gathered
        return is_left and inserted <= self.stale_at and n_excluded == self.n_excluded

    def next(self) -> tuple[Items, Array]:
        """The next batch, and the rows at which its draws begin."""
        begin, self.taken = self.taken, self.taken + self.size
        batch = {name: column[begin : self.taken] for name, column in self.batch.items()}
        return batch, self.index[begin : self.taken]
