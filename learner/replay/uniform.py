"""Uniform sampling with replacement."""

from __future__ import annotations

from common.data import Array, Items
from learner.replay.shared import SharedReplay


class UniformReplay(SharedReplay):
    """A ``ReplayBuffer`` over shared memory."""

    def batch(self, size: int) -> Items:
        _, items = self._reader.take(self._draw, size)
        self._sampled += size
        return items

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Every item stays as likely as any other."""

    def _draw(self, size: int) -> Items:
        return {"index": self._rng.integers(*self._reader.bounds(), size)}
