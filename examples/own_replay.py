"""Your own replay buffer: recent steps are drawn more often (Wang & Ross, arXiv:1906.04009, in a plain form).

Run: learner-server --config examples/own_replay.yaml --local-actors 2
"""

import numpy as np

from crossborder import Array, Items, ReplayMemory, SharedReplay, View


class RecentReplay(SharedReplay):
    """Begins half of the draws in the newest ``share`` of the rows, and the other half anywhere."""

    def __init__(self, memory: ReplayMemory, view: View, seed: int, share: float = 0.1) -> None:
        super().__init__(memory, view, seed)
        self._share = share

    def draw(self, size: int) -> tuple[Array, Items]:
        first, end = self.reader.first, self.reader.end
        recent = end - max(1, int(self._share * (end - first)))
        begins = np.where(np.arange(size) % 2 == 0, recent, first)  # [size]
        return self._rng.integers(begins, end), {}
