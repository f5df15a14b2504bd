"""Your own environment and your own agent: a corridor, and tabular Q-learning that trains asynchronously.

Run: learner-server --config examples/own_parts.yaml --local-actors 2
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from crossborder import Agent, Array, EnvSpec, Model, Record, ReplayBuffer


class Corridor(gymnasium.Env[Array, Any]):
    """Walk right to the end for a reward of 1; every step costs 0.01; time is up after ten times the length."""

    def __init__(self, length: int = 10) -> None:
        self.observation_space = gymnasium.spaces.Box(0, length, (1,), np.int64)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._length, self._at, self._steps = length, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._steps = 0, 0
        return np.array([0]), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._at = max(0, self._at + (1 if action else -1))
        self._steps += 1
        arrived, late = self._at == self._length, self._steps >= 10 * self._length
        return np.array([self._at]), 1.0 if arrived else -0.01, arrived, late, {}


class TabularQ(Agent):
    """Q-learning on a table; the table is the model that actors fetch."""

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float, device: str, learning_rate: float = 0.5) -> None:
        high = int(spec.observation_space.high[0])  # type: ignore[attr-defined]
        self.table = torch.zeros(high + 1, spec.action_space.n)  # type: ignore[attr-defined]
        self._rng, self._epsilon, self._learning_rate = np.random.default_rng(seed), epsilon, learning_rate

    def sample(self, obs: Array) -> Array:
        greedy = self.table[obs[:, 0]].argmax(dim=1).numpy()
        explore = self._rng.random(len(obs)) < (self._epsilon if self.is_train else 0.0)
        return np.where(explore, self._rng.integers(2, size=len(obs)), greedy)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        batch = {name: torch.from_numpy(column) for name, column in buffer.batch(32).items()}
        at, action = batch["obs"][:, 0], batch["action"]
        future = self.table[batch["next_obs"][:, 0]].amax(dim=1) * ~batch["terminated"]
        error = batch["reward"] + 0.95 * future - self.table[at, action]
        self.table[at, action] += self._learning_rate * error
        return {"td_error": error.abs().mean()}

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {"table": self.table}

    def sync_model(self, model: Model) -> None:
        self.table.copy_(torch.from_numpy(model.params["table"]))

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return {"table": self.table}

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        self.table.copy_(params["table"])
