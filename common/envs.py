"""Building gymnasium environments and what is known of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import FlattenObservation, TransformObservation

from common.data import Column
from common.errors import ConfigError, PluginError
from common.interfaces import EnvSpec
from common.part_config import PluginConfig

Env = gymnasium.Env[Any, Any]
MAX_STACK: Final = 16
"""Frames in one observation, at most; a longer first axis is one of the picture itself."""
MIN_FRAME_BYTES: Final = 1024
"""Less is not worth an index."""


def build_env(config: PluginConfig) -> Env:
    """Build the environment that the configuration names, its observations as ``box_observations`` makes them.

    Raises:
        PluginError: it is no gymnasium.Env, gymnasium does not know it, it takes other parameters, or something that it
            needs is not installed.
    """
    try:
        env = config.build()
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise PluginError(f"env {config.target} {config.params}: {error}{_extra(error)}") from error
    if not isinstance(env, gymnasium.Env):
        raise PluginError(f"env {config.target}: expected a gymnasium.Env, found {type(env).__name__}")
    return box_observations(env)


def _extra(error: Exception) -> str:
    """Our name for what gymnasium asks to have installed."""
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        for extra in ("atari", "box2d", "mujoco"):
            if extra in str(error).lower():
                return f"; here: pip install 'crossborder[{extra}]'"
    return ""


def box_observations(env: Env) -> Env:
    """Give an environment observations that can be stored and learned from: arrays of one dtype and shape.

    Spaces other than Box become one flat Box, as ``gymnasium.wrappers.FlattenObservation`` does it: discrete values
    one-hot, the entries of a Dict one after another in the order of its keys (gymnasium sorts those of a plain dict).
    Observations of float64 become float32, half the bytes. Others stay as they are, and so does a space that cannot be
    flattened.
    """
    space = env.observation_space
    if not isinstance(space, Box) and space.is_np_flattenable:
        env = FlattenObservation(env)
    space = env.observation_space
    if not (isinstance(space, Box) and space.dtype == np.float64):
        return env
    # DtypeObservation does the same, but warns about the bounds of every space.
    narrow = Box(space.low.astype(np.float32), space.high.astype(np.float32), space.shape)
    return TransformObservation(env, lambda obs: np.asarray(obs, np.float32), narrow)


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
