"""Builds the environment that a configuration names, as lanes that step together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium

from common import spaces
from common.data import Column
from common.errors import PluginError
from common.interfaces import EnvSpec
from common.lanes.lanes import AnyEnv, Lanes, Picks, close_env
from common.lanes.plain_lanes import PlainLanes
from common.lanes.space_config import read_spaces
from common.lanes.vector_lanes import VectorLanes, is_vector
from common.plugins.part_config import EnvConfig, WrapperConfig

Env = gymnasium.Env[Any, Any]


class EnvExitError(Exception):
    """An environment called ``sys.exit``. This counts as any other exception of it, and does not end this process."""

    def __init__(self, exit_: SystemExit) -> None:
        super().__init__(f"the environment called sys.exit({exit_.code!r})")


def build_env(config: EnvConfig, seed: int | None = None) -> AnyEnv:
    """Build the environment that the configuration names, within its wrappers.

    Args:
        config: names the environment.
        seed: for a target with a parameter ``seed`` that ``params`` does not set; resets have other seeds.

    Returns:
        a ``gymnasium.Env``, or a vector environment (see ``is_vector``).

    Raises:
        PluginError: the target builds neither, gymnasium does not know the id, a target takes other parameters, or a
            package that it needs is not installed.
    """
    try:
        env = _wrap(config.build(optional=None if seed is None else {"seed": seed}), config.wrappers)
    except SystemExit as exit_:
        raise PluginError(f"env {config.target}: {EnvExitError(exit_)} while it was built") from exit_
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise PluginError(f"env {config.target} {config.params}: {error}{_install_hint(error)}") from error
    if not (isinstance(env, gymnasium.Env) or is_vector(env)):
        raise PluginError(f"env {config.target}: expected a gymnasium.Env or VectorEnv, found {type(env).__name__}")
    if is_vector(env) and (config.rate_hz is not None or config.safe_stop is not None):
        close_env(env)
        raise PluginError(
            f"env {config.target}: expected a plain environment with env.rate_hz or env.safe_stop, since a robot is "
            "one lane, found a vector environment"
        )
    return env


def _wrap(env: AnyEnv, wrappers: Sequence[WrapperConfig]) -> AnyEnv:
    try:
        for wrapper in wrappers:
            env = wrapper.build(env=env)
    except BaseException:
        close_env(env)
        raise
    return env


def _install_hint(error: Exception) -> str:
    """The extra of crossborder that installs the package which gymnasium says is missing."""
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        for extra in ("atari", "box2d", "mujoco"):
            if extra in str(error).lower():
                return f"; here: pip install 'crossborder[{extra}]'"
    return ""


def build_lanes(config: EnvConfig, n: int = 1, seed: int | None = None) -> Lanes:
    """Build the lanes of the environment that the configuration names.

    Args:
        config: names the environment.
        n: the number of plain environments to build; a vector environment decides its number of lanes itself.
        seed: of the first environment, see ``build_env``; environment j has ``seed + j``.

    Raises:
        PluginError: the environment cannot be built, see ``build_env``.
        ConfigError: a space cannot be recorded, or frames cannot be stacked.
    """

    def build(j: int) -> AnyEnv:
        env = build_env(config, None if seed is None else seed + j)
        stack.callback(close_env, env)
        return env

    with ExitStack() as stack:
        first = build(0)
        lanes = lanes_of(first if is_vector(first) else [first, *map(build, range(1, n))], config)
        stack.pop_all()  # The environments stay open.
    return lanes


def lanes_of(envs: AnyEnv, config: EnvConfig | None = None) -> Lanes:
    """The lanes of a vector environment, or of plain environments of one kind.

    Args:
        envs: a vector environment, a plain one, or several plain ones in a list.
        config: says what is recorded of them.

    Raises:
        ConfigError, PluginError: see ``build_lanes``.
    """
    picks = picks_of(config) if config else Picks()
    float64 = config is not None and config.float64
    name = f"env {config.target} {config.params or ''}".rstrip() if config else "env"
    if not isinstance(envs, list):
        spec = spec_of(envs, float64=float64)
        return VectorLanes(envs, spec, picks, name) if is_vector(envs) else PlainLanes([envs], spec, picks, name)
    return PlainLanes(envs, spec_of(envs[0], float64=float64), picks, name)


def picks_of(config: EnvConfig) -> Picks:
    """The values that a configuration picks from ``info``."""
    columns = {key: Column.of(f"info/{key}", dtype, shape) for key, (dtype, shape) in config.info_columns.items()}
    return Picks(columns, config.intervention)


def spec_of(env: AnyEnv, *, float64: bool = False) -> EnvSpec:
    """The spaces of one lane as they are recorded: float64 as float32, unless ``float64`` keeps it.

    Raises:
        ConfigError: a space cannot be recorded.
    """
    prefix = "single_" if is_vector(env) else ""
    spec = EnvSpec(*(getattr(env, f"{prefix}{name}") for name in ("observation_space", "action_space")))
    for space in (spec.observation_space, spec.action_space):
        spaces.leaves_of(space)  # Before anybody else looks at them: the error names spaces of another package.
    return narrowed(spec, float64=float64)


def narrowed(spec: EnvSpec, *, float64: bool = False) -> EnvSpec:
    """The same spaces, with float64 observations as float32 unless ``float64`` keeps them."""
    if float64:
        return spec
    return EnvSpec(spaces.narrow(spec.observation_space), spaces.narrow(spec.action_space))


def read_spec(config: EnvConfig) -> EnvSpec:
    """The spaces of one lane as they are recorded: those of ``env.spaces``; without it, the environment is built.

    Raises:
        PluginError, ConfigError: see ``build_env`` and ``read_spaces``.
    """
    if config.spaces is not None:
        return narrowed(read_spaces(config.spaces), float64=config.float64)
    env = build_env(config)
    try:
        return spec_of(env, float64=config.float64)
    finally:
        close_env(env)


def stacked_spec(spec: EnvSpec, frames: int) -> EnvSpec:
    """The spaces as the agent sees them, with ``frames`` frames in an observation.

    Raises:
        ConfigError: there are frames to stack and an observation is no Box.
    """
    if frames == 1:
        return spec
    return EnvSpec(spaces.stack(spec.observation_space, frames), spec.action_space)
