"""Items for benchmarks: of any schema, with pictures of Pong in columns of frames."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium
import numpy as np

from common import atari
from common.data import Array, Items, Schema


class Screens(gymnasium.Env[Array, Any]):
    """An environment with Atari's spaces, stacks of four 84 x 84 pictures; benchmarks never step it."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        raise NotImplementedError

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        raise NotImplementedError


def life(schema: Schema, rows: int) -> Items:
    """Consecutive transitions. Columns of frames show Pong, ``next_obs`` one frame ahead of ``obs``; others are 0."""
    items: Items = {column.name: np.zeros((rows, *column.shape), column.dtype) for column in schema.columns}
    for ahead, column in enumerate(schema.frame_columns):
        stack = column.shape[0]
        frames = pong(rows + stack + 1)
        items[column.name] = np.stack([frames[i + ahead : i + ahead + stack] for i in range(rows)])
    return items


@cache
def pong(n: int) -> Array:
    """The first frames of a game of Pong with random actions, uint8 ``[n, 84, 84]``."""
    env = atari.make("ALE/Pong-v5")
    env.action_space.seed(0)
    frames = [env.reset(seed=0)[0][-1], *(env.step(env.action_space.sample())[0][-1] for _ in range(n - 1))]
    env.close()
    return np.stack(frames)
