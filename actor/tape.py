"""Episodes on tape: an environment cannot be asked for its state, but a deterministic one can be played again.

From the same random generator, by the same actions, it comes to where it was; that it did is seen from checksums.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, SupportsFloat

import gymnasium
import numpy as np

from common.data import Array, Snapshot
from common.envs import Env

MAX_STEPS: Final = 100_000
"""An episode of so many steps is not kept."""


class TapedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Remembers how its present episode began, what was done in it, and a checksum of what came out of each step."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._seed: int | None = None
        self._random_before: dict[str, Any] | None = None
        self._actions: list[Array] = []
        self.sums: list[int] = []
        """CRC-32 of the first observation, then of the reward and the observation of each step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._seed, self._random_before = seed, self._random() if seed is None else None
        obs, info = self.env.reset(seed=seed, options=options)
        self._actions, self.sums = [], [_checksum(obs)]
        return obs, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if len(self._actions) < MAX_STEPS:
            self._actions.append(np.array(action))
            self.sums.append(_checksum(obs, reward))
        return obs, reward, terminated, truncated, info

    def state(self) -> Snapshot:
        """How the present episode came to where it is; nothing of it, if it has ``MAX_STEPS``."""
        values = {"seed": self._seed, "random_before": self._random_before, "random": self._random()}
        actions, sums = (self._actions, self.sums) if len(self._actions) < MAX_STEPS else ([], [])
        return Snapshot(values, {"actions": np.array(actions), "sums": np.array(sums, np.int64)})

    def rewind(self, state: Snapshot) -> int | None:
        """Be as before the reset with which the episode of ``state`` began; the seed of that reset."""
        values = state.values
        if values["random_before"] is not None:
            self.unwrapped.np_random.bit_generator.state = values["random_before"]
        seed: int | None = values["seed"]
        return seed

    def is_at(self, state: Snapshot) -> bool:
        """Whether the present episode came out as that of ``state``, and the next draw will."""
        return bool(self.sums == state.arrays["sums"].tolist() and self._random() == state.values["random"])

    def _random(self) -> dict[str, Any] | None:
        """The generator that gymnasium gives an environment; None if it has another kind."""
        generator: object = self.unwrapped.np_random
        if isinstance(generator, np.random.Generator) and isinstance(generator.bit_generator, np.random.PCG64):
            return dict(generator.bit_generator.state)
        return None


def _checksum(obs: Any, reward: SupportsFloat = 0.0) -> int:
    return zlib.crc32(np.asarray(obs).tobytes(), zlib.crc32(np.float64(reward).tobytes()))
