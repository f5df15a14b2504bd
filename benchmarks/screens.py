"""Rows for benchmarks: of any schema, with pictures of Pong in columns of pictures."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium
import numpy as np

from common.data import Array, Column, Items, Schema
from common.envs import atari


class Screens(gymnasium.Env[Array, Any]):
    """An environment with the spaces of an Atari game, one picture an observation; benchmarks never step it."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        raise NotImplementedError

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        raise NotImplementedError


def life(schema: Schema, rows: int, lane: int = 0) -> Items:
    """Consecutive rows from the middle of an episode of one lane: pictures of Pong, and small random floats."""
    rng = np.random.default_rng(lane)
    items = {column.name: values(column, rows, rng) for column in schema.columns}
    return {**items, "lane": np.full(rows, lane, np.uint16)}


def values(column: Column, rows: int, rng: np.random.Generator) -> Array:
    """Values of a column, ``[rows, *shape]``, that lie in most spaces; integers and flags are 0."""
    shape, dtype = (rows, *column.shape), np.dtype(column.dtype)
    if column.is_picture:
        return np.resize(pong(rows), shape)
    if dtype.kind == "f":
        return rng.uniform(-0.1, 0.1, shape).astype(dtype)
    return np.zeros(shape, dtype)


@cache
def pong(n: int) -> Array:
    """The first frames of a game of Pong with random actions, uint8 ``[n, 84, 84]``."""
    env = atari.make("ALE/Pong-v5")
    env.action_space.seed(0)
    frames = [env.reset(seed=0)[0], *(env.step(env.action_space.sample())[0] for _ in range(n - 1))]
    env.close()
    return np.stack(frames)
