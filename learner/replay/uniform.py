"""Uniform sampling with replacement."""

from __future__ import annotations

import numpy as np

from common.data import Array, Items
from learner.replay.memory import ReplayMemory
from learner.replay.reader import ReplayReader


class UniformReplay:
    """A ``ReplayBuffer`` over shared memory.

    Args:
        memory: read only here.
        seed: of the draws.
    """

    def __init__(self, memory: ReplayMemory, seed: int) -> None:
        self._memory = memory
        self._reader = ReplayReader(memory)
        self._rng = np.random.default_rng(seed)
        self._sampled = 0

    @property
    def inserted(self) -> int:
        return self._memory.committed

    @property
    def sampled(self) -> int:
        return self._sampled

    def __len__(self) -> int:
        return len(self._memory)

    def batch(self, size: int) -> Items:
        """Draw ``size`` items; the arrays are reused by the next call of the same size.

        Raises:
            IndexError: there is nothing to draw from.
        """
        _, items = self._reader.take(self._draw, size)
        self._sampled += size
        return items

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Every item stays as likely as any other."""

    def _draw(self, size: int) -> Items:
        return {"index": self._rng.integers(*self._reader.bounds(), size)}
