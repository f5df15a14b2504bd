"""Your own replay buffer: recent items are drawn more often (Wang & Ross, arXiv:1906.04009, in a plain form).

Run: learner-server --config examples/own_replay.yaml --local-actors 2
"""

import numpy as np

from common.data import Array, Items
from learner.replay.memory import ReplayMemory
from learner.replay.shared_buffer import SharedReplay


class RecentReplay(SharedReplay):
    """Draws half of each batch from the newest ``share`` of the items, and the other half from all of them."""

    def __init__(self, memory: ReplayMemory, seed: int, share: float = 0.1) -> None:
        super().__init__(memory, seed)
        self._share = share

    def draw(self, size: int) -> tuple[Array, Items]:
        first, end = self._reader.bounds()
        recent = end - max(1, int(self._share * (end - first)))
        begins = np.where(np.arange(size) % 2 == 0, recent, first)  # [size]
        return self._rng.integers(begins, end), {}
