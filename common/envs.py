"""Building gymnasium environments and what is known of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import gymnasium
import numpy as np

from common.config import PluginConfig
from common.data import Column
from common.errors import ConfigError, PluginError
from common.interfaces import EnvSpec

Env = gymnasium.Env[Any, Any]
MAX_STACK: Final = 16
"""Frames in one observation, at most; a longer first axis is one of the picture itself."""
MIN_FRAME_BYTES: Final = 1024
"""Less is not worth an index."""


def build_env(config: PluginConfig) -> Env:
    """Build the environment that the configuration names.

    Raises:
        PluginError: it is no gymnasium.Env, gymnasium does not know it, or it takes other parameters.
    """
    try:
        env = config.build()
    except (gymnasium.error.Error, TypeError) as error:
        raise PluginError(f"env {config.target} {config.params}: {error}") from error
    if not isinstance(env, gymnasium.Env):
        raise PluginError(f"env {config.target}: expected a gymnasium.Env, found {type(env).__name__}")
    return env


def spec_of(env: Env) -> EnvSpec:
    return EnvSpec(env.observation_space, env.action_space)


def column_of(name: str, space: gymnasium.Space[Any]) -> Column:
    """The column that holds one element of a space; of pictures stacked along the first axis, a column of frames.

    Raises:
        ConfigError: the space has no fixed dtype and shape.
    """
    if space.dtype is None or space.shape is None:
        raise ConfigError(f"{name}: expected a space with one dtype and shape, found {space}")
    column = Column.of(name, space.dtype, space.shape)
    return replace(column, frames=_is_stacked(column)) if isinstance(space, gymnasium.spaces.Box) else column


def _is_stacked(column: Column) -> bool:
    """Whether a column holds frames: ``[4, 84, 84]`` bytes do, one picture ``[210, 160, 3]`` does not."""
    if column.dtype != np.dtype(np.uint8).str or len(column.shape) < 3:
        return False
    stack = column.shape[0]
    return 1 <= stack <= MAX_STACK and column.row_bytes // stack >= MIN_FRAME_BYTES
