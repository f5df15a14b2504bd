"""A small task in which not every action is always allowed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from common.action_masks import MASK
from common.errors import ConfigError


class TakeAway(gymnasium.Env[Any, Any]):
    """Two players take 1 to ``most`` stones in turn, and nobody more than are left; who takes the last stone wins.

    Action k takes k + 1 stones. The opponent takes a random number. The reward is 1 for a win and -1 for a loss, and 0
    before. The best play leaves a multiple of ``most + 1``; from the 10 stones of the default it always wins.

    Observations are those of PettingZoo: ``observation`` says by 1 how many stones are left ``[stones + 1]``, and
    ``action_mask`` which actions are allowed ``[most]``, at the end none.

    Args:
        stones: at the beginning, at least 1.
        most: the most that a player may take, at least 1.

    Raises:
        ConfigError: a number is below 1.
        ValueError: by ``step``, if the action is not allowed.
    """

    def __init__(self, stones: int = 10, most: int = 3) -> None:
        if stones < 1 or most < 1:
            raise ConfigError(f"TakeAway: expected stones and most of at least 1, found {stones} and {most}")
        self._stones, self._most, self._left = stones, most, stones
        self.action_space = gymnasium.spaces.Discrete(most)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "observation": gymnasium.spaces.Box(0, 1, (stones + 1,), np.float32),
                MASK: gymnasium.spaces.Box(0, 1, (most,), np.int8),
            }
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._left = self._stones
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        taken = int(action) + 1
        if not 1 <= taken <= min(self._most, self._left):
            raise ValueError(f"{taken} stones cannot be taken: {self._left} are left, and at most {self._most} go")
        self._left -= taken
        if not self._left:
            return self._observe(), 1.0, True, False, {}
        self._left -= int(self.np_random.integers(1, min(self._most, self._left) + 1))
        return self._observe(), 0.0 if self._left else -1.0, not self._left, False, {}

    def _observe(self) -> dict[str, Any]:
        left = np.zeros(self._stones + 1, np.float32)
        left[self._left] = 1
        return {"observation": left, MASK: (np.arange(self._most) < self._left).astype(np.int8)}
