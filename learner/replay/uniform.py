"""Uniform sampling with replacement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic

import numpy as np

from common.data import Array, Items, Snapshot
from learner.replay.reader import ColumnT, Draws, Gatherer
from learner.replay.shared_buffer import SharedReplay

AHEAD: Final = 16
"""The most batches that are gathered at once."""
STALE: Final = 0.01
"""Gathered batches are dropped once new rows exceed this share of the rows there were when they were drawn."""


class UniformReplay(SharedReplay):
    """A ``ReplayBuffer`` over shared memory that begins draws at every row with the same probability.

    Several small batches are gathered ahead at once: to begin a gather takes longer than to copy the rows of a small
    batch, above all after an opt step, which has filled the processor's caches. So a batch may lack the newest
    hundredth of the rows.
    """

    _ahead: _Ahead[Any] | None = None
    is_uniform = True
    _draw_bytes = 0
    """Bytes of one draw; 0 before the first draw."""

    def take_batch(self, size: int, rows: Gatherer[ColumnT]) -> dict[str, ColumnT]:
        ahead = self._ahead
        if ahead is not None and ahead.rows is None:  # It is of a restored state.
            ahead.batch, ahead.rows = rows.place(ahead.batch), rows
        if ahead is None or not ahead.serves(size, rows, self._memory.committed):
            ahead = self._ahead = self._gather_ahead(size, rows)
        batch, self.last_drawn, steps = ahead.next()
        self._sampled += steps
        return batch

    def _gather_ahead(self, size: int, rows: Gatherer[ColumnT]) -> _Ahead[ColumnT]:
        n = max(1, min(AHEAD, rows.AHEAD_BYTES // (size * self._draw_bytes))) if self._draw_bytes else 1
        if self._ahead is not None and self._ahead.size != size:
            n = 1  # A caller that changes between sizes would throw away the batches of the other size each time.
        draws, batch = rows.gather(self.make_draws, n * size)
        self._draw_bytes = sum(column.nbytes for column in batch.values()) // (n * size)
        stale_at = self._reader.end + int(STALE * (self._reader.end - self._reader.first))
        steps = self._count_each(draws.plan.made, size, n * size)
        return _Ahead(batch, rows, draws.index, steps, size, n * size, stale_at)

    def _count_each(self, made: Items, size: int, gathered: int) -> Iterator[int]:
        """The steps in each of the batches of ``size`` draws in which ``gathered`` draws follow each other."""
        for begin in range(0, gathered, size):
            batch = {name: column[begin : begin + size] for name, column in made.items()}
            yield self._view.count_steps(batch, size)

    def draw(self, size: int) -> tuple[Array, Items]:
        return self._rng.integers(self._reader.first, self._reader.end, size), {}

    def make_draws(self, size: int) -> Draws:
        self._reader.look()
        if len(self._memory.excluded):
            return super().make_draws(size)
        # Draws can begin at nearly all rows, so it is enough to look at a few more rows than are needed.
        tries, _ = self.draw(size + size // 16 + 4)
        index, plan = self._reader.choose(tries, size)
        return Draws(index, plan, {}) if len(index) == size else super().make_draws(size)

    def state(self) -> Snapshot:
        state, ahead = super().state(), self._ahead
        values = {**state.values, "draw_bytes": self._draw_bytes}
        if ahead is None:
            return Snapshot(values)
        left = {name: _to_array(column[ahead.taken :]) for name, column in ahead.batch.items()}
        drawn = {"size": ahead.size, "left": ahead.gathered - ahead.taken, "stale_at": ahead.stale_at}
        described = {**drawn, "view": self._view.settings, "columns": list(left)}
        return Snapshot({**values, "ahead": described}, left)

    def restore(self, state: Snapshot) -> None:
        super().restore(state)
        ahead, self._draw_bytes = state.values.get("ahead"), state.values.get("draw_bytes", 0)
        # A state does not say which rows are in its batches: if any rows are excluded, none of the batches is used.
        if ahead and ahead.get("view") == self._view.settings and not len(self._memory.excluded):
            batch = {name: state.arrays[name].copy() for name in ahead["columns"]}  # Files do not keep their order.
            unknown, steps = np.empty(0, np.int64), self._count_each(batch, ahead["size"], ahead["left"])
            self._ahead = _Ahead(batch, None, unknown, steps, ahead["size"], ahead["left"], ahead["stale_at"])


@dataclass
class _Ahead(Generic[ColumnT]):
    """Several batches of ``size`` draws that have been gathered, one after another in ``batch``.

    Args:
        batch: columns ``[gathered, …]``.
        rows: gathered the columns; None: they are arrays, and nobody has asked for them yet.
        index: the rows at which the draws begin ``[gathered]``; empty if they are not known.
        steps: the number of steps in each batch.
        size: draws in a batch.
        gathered: draws in all batches.
        stale_at: rows ever stored at which the batches are no longer used.
        taken: draws given so far.
    """

    batch: dict[str, ColumnT]
    rows: Gatherer[ColumnT] | None
    index: Array
    steps: Iterator[int]
    size: int
    gathered: int
    stale_at: int
    taken: int = 0

    def serves(self, size: int, rows: Gatherer[Any], inserted: int) -> bool:
        """Whether there is another batch of this size and kind, and no new rows forbid its use."""
        is_left = size == self.size and rows is self.rows and self.taken < self.gathered
        return is_left and inserted <= self.stale_at

    def next(self) -> tuple[dict[str, ColumnT], Array, int]:
        """The next batch, the rows at which its draws begin, and the number of its steps."""
        begin, self.taken = self.taken, self.taken + self.size
        batch = {name: column[begin : self.taken] for name, column in self.batch.items()}
        return batch, self.index[begin : self.taken], next(self.steps)


def _to_array(column: Any) -> Array:
    """An array, or a tensor's values as an array."""
    array: Array = column if isinstance(column, np.ndarray) else column.cpu().numpy()
    return array
