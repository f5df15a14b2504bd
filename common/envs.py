"""Building gymnasium environments and what is known of them."""

from __future__ import annotations

from typing import Any

import gymnasium

from common.config import PluginConfig
from common.data import Column
from common.errors import ConfigError, PluginError
from common.interfaces import EnvSpec

Env = gymnasium.Env[Any, Any]


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
    """The column that holds one element of a space.

    Raises:
        ConfigError: the space has no fixed dtype and shape.
    """
    if space.dtype is None or space.shape is None:
        raise ConfigError(f"{name}: expected a space with one dtype and shape, found {space}")
    return Column.of(name, space.dtype, space.shape)
