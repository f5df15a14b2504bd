"""Small tasks that need a memory: observations of which a part is hidden, and a cue that must be remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from common.data import Array
from common.errors import ConfigError


class KeepElements(gymnasium.ObservationWrapper[Array, Any, Array]):
    """Shows some elements of a vector observation and hides the others.

    ``elements: [0, 2]`` of CartPole are the positions of cart and pole; ``[0, 1]`` of Pendulum is its angle. Without
    the velocities, no single observation says which way the pole moves.

    Args:
        env: its observations are Boxes ``[n]``.
        elements: indices from 0 on, in the order of the new observation.

    Raises:
        ConfigError: observations are no such Boxes, or an index is beyond their elements.
    """

    def __init__(self, env: gymnasium.Env[Array, Any], elements: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ConfigError(f"KeepElements: expected vector observations, found {space}")
        self._elements = list(elements)
        if not self._elements or not all(0 <= element < space.shape[0] for element in self._elements):
            raise ConfigError(f"KeepElements: expected elements from 0 to {space.shape[0] - 1}, found {self._elements}")
        low, high = space.low[self._elements], space.high[self._elements]
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Array) -> Array:
        """The elements that are shown."""
        return observation[self._elements]


class Cue(gymnasium.Env[Array, np.int64]):
    """Shows a cue once, at the beginning, and asks for it ``delay`` steps later.

    Observations are ``[cue, asked, noise]``: the cue is -1 or 1 in the first observation and 0 afterwards, ``asked`` is
    1 in the last observation and 0 before, noise is uniform in [-1, 1]. The action after the last observation is the
    answer, 0 for the cue -1 and 1 for the cue 1. It ends the episode with the reward 1 if it is right and -1 if not.
    All other actions change nothing. An agent without a memory scores 0 on average, as guessing does, and so does an
    agent with a stack of ``delay`` observations.

    Args:
        delay: steps between the first observation and the last, at least 1.

    Raises:
        ConfigError: the delay is too short.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, delay: int) -> None:
        if delay < 1:
            raise ConfigError(f"Cue: expected delay >= 1, found {delay}")
        self._delay = delay
        self._cue = self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._cue, self._steps = int(self.np_random.integers(2)), 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        is_answer, is_right = self._steps == self._delay, int(action) == self._cue
        self._steps += 1
        reward = (1.0 if is_right else -1.0) if is_answer else 0.0
        return self._observe(), reward, is_answer, False, {}

    def _observe(self) -> Array:
        cue = 2 * self._cue - 1 if self._steps == 0 else 0
        return np.array([cue, self._steps == self._delay, self.np_random.uniform(-1, 1)], np.float32)
