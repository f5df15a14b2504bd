"""An agent that does nothing, so that a benchmark measures the system alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from common.data import Array
from common.interfaces import EnvSpec, FixedAgent


class Idle(FixedAgent):
    """Gives actions that were drawn beforehand, and publishes a single number as its model."""

    def __init__(self, spec: EnvSpec, seed: int, epsilon: float, device: str) -> None:
        del epsilon, device
        self._space, self._actions = spec.action_space, np.empty(0)
        self._space.seed(seed)
        self._weight = torch.zeros(1)

    def sample(self, obs: Any) -> Array:
        n = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        if len(self._actions) != n:
            self._actions = np.array([self._space.sample() for _ in range(n)])
        return self._actions

    def model_info(self) -> dict[str, torch.Tensor]:
        return {"weight": self._weight}

    def save_params(self) -> dict[str, torch.Tensor]:
        return self.model_info()
