"""An agent whose actions tell a client's messages apart: they count the observations of each lane's episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from common.data import Array, Leaves, Model, Record
from common.interfaces import Agent, EnvSpec, ReplayBuffer


class CountingAgent(Agent):
    """Acts by the number of observations that a lane has had in its episode, the first one included.

    In a Dict space, the leaf ``count`` has the number, and ``aim`` the number and the mean of the leaf ``camera``.
    """

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float, device: str) -> None:
        self._is_dict = isinstance(spec.action_space, gymnasium.spaces.Dict)
        self._counts = Counter[int]()

    def begin(self, begins: Array, lanes: Array | None = None) -> None:
        assert lanes is not None
        for lane in lanes[begins].tolist():
            self._counts[lane] = 0

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Leaves:
        assert lanes is not None
        self._counts.update(lanes.tolist())
        counts = np.array([self._counts[lane] for lane in lanes.tolist()])
        if not self._is_dict:
            return counts
        assert isinstance(obs, dict)
        aims = np.stack([counts, obs["camera"].reshape(len(lanes), -1).mean(1)], axis=1)
        return {"aim": aims.astype(np.float32), "count": counts}

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        return None

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {"nothing": torch.zeros(1)}

    def sync_model(self, model: Model) -> None:
        """There is nothing to load."""

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return self.model_info()

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        """There is nothing to load."""


PLAIN: dict[str, Any] = {
    "observation": {"type": "Box", "low": -1000, "high": 1000, "shape": [2]},
    "action": {"type": "Discrete", "n": 1000},
}
STRUCTURED: dict[str, Any] = {
    "observation": {
        "type": "Dict",
        "spaces": {
            "camera": {"type": "Box", "low": 0, "high": 255, "shape": [2, 2, 3], "dtype": "uint8"},
            "arm": {"type": "Dict", "spaces": {"joints": {"type": "Box", "low": -1, "high": 1, "shape": [3]}}},
        },
    },
    "action": {
        "type": "Dict",
        "spaces": {
            "count": {"type": "Discrete", "n": 1000},
            "aim": {"type": "Box", "low": 0, "high": 1000, "shape": [2]},
        },
    },
}
