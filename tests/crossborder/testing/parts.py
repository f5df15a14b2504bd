"""What tests of the checks share: a good environment, and parts that are broken in one way."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.data import Array

Broken = tuple[dict[str, Any], str]
"""Attributes that replace those of a good part, and the message that the check must give."""


def broken(part: type[Any], attributes: dict[str, Any]) -> Any:
    return type("Broken", (part,), attributes)


def fails_saying(message: str) -> Any:
    return pytest.raises(AssertionError, match=re.escape(message))


class Walk(gymnasium.Env[Array, Any]):
    """A random walk that ends at 3, or after 20 steps."""

    def __init__(self) -> None:
        self.observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(-30, 30, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.at, self.steps = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.steps = float(self.np_random.normal()), 0
        return self.obs(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.at += self.move(action)
        self.steps += 1
        return self.obs(), self.at, self.at > 3, self.steps == 20, {}

    def move(self, action: int) -> float:
        return float(self.np_random.normal(action - 0.5))

    def obs(self) -> Array:
        return np.array([self.at], np.float32)
