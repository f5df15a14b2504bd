"""Builds gymnasium environments, and describes their observations and actions as columns of items."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Box
from gymnasium.spaces.utils import flatten, flatten_space
from gymnasium.wrappers import TransformObservation

from common.data import Array, Column
from common.domain import Domain
from common.errors import ConfigError, PluginError
from common.interfaces import EnvSpec
from common.plugins.part_config import PluginConfig

Env = gymnasium.Env[Any, Any]
MAX_STACK: Final = 16
"""The most frames in one observation; a longer first axis is taken for an axis of the picture itself."""
MIN_FRAME_BYTES: Final = 1024
"""Smaller frames are stored as they are: to share them would not save enough to be worth an index."""


class EnvExitError(Exception):
    """An environment called ``sys.exit``. This is treated as any other exception of it and does not end our process."""

    def __init__(self, exit_: SystemExit) -> None:
        super().__init__(f"the environment called sys.exit({exit_.code!r})")


def build_env(config: PluginConfig) -> Env:
    """Build the environment that the configuration names, with observations as ``box_observations`` makes them.

    Raises:
        PluginError: the target builds no gymnasium.Env, gymnasium does not know the id, the target takes other
            parameters, or a package that it needs is not installed.
    """
    return box_observations(build_raw_env(config))


def build_raw_env(config: PluginConfig) -> Env:
    """Build the environment that the configuration names, with the observations of its own space.

    Raises:
        PluginError: see ``build_env``.
    """
    try:
        env = config.build()
    except SystemExit as exit_:
        raise PluginError(f"env {config.target}: {EnvExitError(exit_)} while it was built") from exit_
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise PluginError(f"env {config.target} {config.params}: {error}{_install_hint(error)}") from error
    if not isinstance(env, gymnasium.Env):
        raise PluginError(f"env {config.target}: expected a gymnasium.Env, found {type(env).__name__}")
    return env


def _install_hint(error: Exception) -> str:
    """The extra of crossborder that installs the package which gymnasium says is missing."""
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        for extra in ("atari", "box2d", "mujoco"):
            if extra in str(error).lower():
                return f"; here: pip install 'crossborder[{extra}]'"
    return ""


def box_observations(env: Env) -> Env:
    """Give an environment observations that can be stored and learned from: arrays of one dtype and shape.

    A space other than Box becomes one flat Box, as ``gymnasium.spaces.utils.flatten`` does it: discrete values become
    one-hot vectors, and the entries of a Dict stand one after another in the order of its keys (gymnasium sorts the
    keys of a plain dict). Observations of float64 become float32, half the bytes. All other observations stay as they
    are, also those of a space that cannot be flattened.
    """
    space = env.observation_space
    boxed = box_of(space)
    return env if boxed is space else TransformObservation(env, partial(as_element_of, boxed, space), boxed)


def box_of(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """The space of the observations that ``box_observations`` makes of ``space``; ``space`` itself if none change."""
    flat = space if isinstance(space, Box) or not space.is_np_flattenable else flatten_space(space)
    if not (isinstance(flat, Box) and flat.dtype == np.float64):
        return flat
    return Box(flat.low.astype(np.float32), flat.high.astype(np.float32), flat.shape)


def as_element_of(boxed: gymnasium.Space[Any], space: gymnasium.Space[Any], obs: Any) -> Array:
    """An observation of ``space`` as an element of ``boxed``, which is ``box_of(space)``."""
    return np.asarray(obs if isinstance(space, Box) or boxed is space else flatten(space, obs), boxed.dtype)


def spec_of(env: Env) -> EnvSpec:
    return EnvSpec(env.observation_space, env.action_space)


def column_of(name: str, space: gymnasium.Space[Any]) -> Column:
    """The column whose rows hold elements of a space; a column of frames if the elements are stacked pictures.

    Raises:
        ConfigError: the space has no fixed dtype and shape.
    """
    if space.dtype is None or space.shape is None:
        raise ConfigError(f"{name}: expected a space with one dtype and shape, found {space}")
    column = Column.of(name, space.dtype, space.shape, domain_of(space))
    return replace(column, frames=_is_stacked(column)) if isinstance(space, gymnasium.spaces.Box) else column


def domain_of(space: gymnasium.Space[Any]) -> Domain | None:
    """The values of a space's elements; None if they are all values of the dtype, or for spaces of other kinds."""
    match space:
        case spaces.Box():
            return Domain.between(space.low, space.high, space.dtype)
        case spaces.Discrete():
            return Domain.between(space.start, space.start + space.n - 1, space.dtype)
        case spaces.MultiDiscrete():
            return Domain.between(space.start, space.start + space.nvec - 1, space.dtype)
        case spaces.MultiBinary():
            return Domain.between(0, 1, space.dtype)
    return None


def _is_stacked(column: Column) -> bool:
    """Whether a column holds stacked frames: bytes ``[4, 84, 84]`` are frames, a picture ``[210, 160, 3]`` is not."""
    if column.dtype != np.dtype(np.uint8).str or len(column.shape) < 3:
        return False
    stack = column.shape[0]
    return 1 <= stack <= MAX_STACK and column.row_bytes // stack >= MIN_FRAME_BYTES
