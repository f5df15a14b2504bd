"""Uniform sampling with replacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from common.data import Array, Items, Snapshot
from learner.replay.shared import SharedReplay

AHEAD: Final = 16
AHEAD_BYTES: Final = 256 << 10
"""So many batches are gathered at once, as far as they take no more than this."""
STALE: Final = 0.01
"""Share of the items that may have come since they were gathered."""


class UniformReplay(SharedReplay):
    """A ``ReplayBuffer`` over shared memory.

    Small batches are gathered ahead, several at once: a gather takes longer to begin than to do, above all between opt
    steps that fill a processor's caches. They are drawn from what was there then, all but the newest hundredth.
    """

    _ahead: _Ahead | None = None

    def batch(self, size: int) -> Items:
        ahead = self._ahead
        if ahead is None or not ahead.serves(size, self._memory.committed):
            ahead = self._ahead = self._gather_ahead(size)
        self._sampled += size
        return ahead.next()

    def _gather_ahead(self, size: int) -> _Ahead:
        n = max(1, min(AHEAD, AHEAD_BYTES // (size * self._memory.schema.row_bytes)))
        if self._ahead is not None and self._ahead.size != size:
            n = 1  # Whoever draws now so many, now so many, would leave the others.
        first, end = self._reader.bounds()
        _, items = self._reader.take(self._draw, n * size)
        return _Ahead(items, size, n * size, end + int(STALE * (end - first)))

    def draw(self, size: int) -> tuple[Array, Items]:
        return self._draw(size)["index"], {}

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Every item stays as likely as any other."""

    def state(self) -> Snapshot:
        state, ahead = super().state(), self._ahead
        if ahead is None:
            return state
        left = {name: column[ahead.taken :] for name, column in ahead.items.items()}
        values = {"size": ahead.size, "left": ahead.gathered - ahead.taken, "stale_at": ahead.stale_at}
        return Snapshot({**state.values, "ahead": values}, left)

    def restore(self, state: Snapshot) -> None:
        super().restore(state)
        if ahead := state.values.get("ahead"):
            names = (column.name for column in self._memory.schema.columns)  # Files know another order.
            items = {name: state.arrays[name].copy() for name in names}
            self._ahead = _Ahead(items, ahead["size"], ahead["left"], ahead["stale_at"])

    def _draw(self, size: int) -> Items:
        return {"index": self._rng.integers(*self._reader.bounds(), size)}


@dataclass
class _Ahead:
    """Batches of ``size`` that have been gathered, as ``items`` one after another.

    Args:
        items: columns ``[gathered, *shape]``.
        size: items in a batch.
        gathered: items in all of them.
        stale_at: with so many items inserted, they are no longer used.
        taken: items given so far.
    """

    items: Items
    size: int
    gathered: int
    stale_at: int
    taken: int = 0

    def serves(self, size: int, inserted: int) -> bool:
        """Whether there is another batch of this size."""
        return size == self.size and self.taken < self.gathered and inserted <= self.stale_at

    def next(self) -> Items:
        """The next batch."""
        begin, self.taken = self.taken, self.taken + self.size
        return {name: column[begin : self.taken] for name, column in self.items.items()}
