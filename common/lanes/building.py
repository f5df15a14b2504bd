"""Builds the environment that a configuration names, as lanes that step together."""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import Space

from common import spaces
from common.data import Column
from common.errors import ConfigError, PluginError
from common.hints import nearest
from common.interfaces import EnvSpec
from common.lanes.lanes import AnyEnv, Lanes, Picks, close_env
from common.lanes.plain_lanes import PlainLanes
from common.lanes.vector_lanes import VectorLanes, is_vector
from common.plugins import part_loading
from common.plugins.part_config import EnvConfig, WrapperConfig
from common.plugins.part_loading import first_line, keeping_globals, naming_fault
from common.settings import naming_setting

_KEYS: Final[dict[str, tuple[set[str], set[str]]]] = {
    "Box": ({"low", "high"}, {"shape", "dtype"}),
    "Discrete": ({"n"}, {"start"}),
    "MultiDiscrete": ({"nvec"}, {"start"}),
    "MultiBinary": ({"n"}, set()),
    "Dict": ({"spaces"}, set()),
    "Tuple": ({"spaces"}, set()),
}
"""By type, the keys that a description must have, and those that it may have."""
_NAMES: Final = ("observation", "action")
MOST_BYTES: Final = 256 << 20
"""The most bytes of a described Box, whose bounds take as many: no message has room for a row with more."""


def read_spaces(found: str | Mapping[str, Any], where: str = "env.spaces") -> EnvSpec:
    """The spaces that a configuration describes, or that the factory returns whose ``module:attr`` it names.

        env:
          spaces:
            observation: {type: Dict, spaces: {camera: {type: Box, low: 0, high: 255, shape: [3, 64, 64], dtype: uint8},
                                               state: {type: Box, low: -.inf, high: .inf, shape: [7]}}}
            action: {type: Box, low: -1, high: 1, shape: [4]}

    The factory is called without arguments, and returns both spaces, or an object with the attributes
    ``observation_space`` and ``action_space``. So a learner need not build the environment.

    Raises:
        ConfigError: a description is wrong, or the factory gives something else.
        PluginError: the factory cannot be loaded; a ``FaultError`` if it raised an exception.
    """
    if isinstance(found, str):
        factory = part_loading.load_part(found)
        with naming_fault(f"{where} {found}"), keeping_globals(found):
            made = factory()
        given: tuple[Any, ...] = (
            made if isinstance(made, tuple) else tuple(getattr(made, f"{name}_space", None) for name in _NAMES)
        )
        if len(given) != len(_NAMES):
            raise ConfigError(f"{where}: expected {found} to return an observation and an action space, found {made!r}")
        observation, action = given
    else:
        if found.keys() != set(_NAMES):
            raise ConfigError(f"{where}: expected the keys observation and action, found {[*found]}")
        observation, action = (_read(found[name], f"{where}.{name}") for name in _NAMES)
    for name, space in zip(_NAMES, (observation, action), strict=True):
        if not isinstance(space, Space):
            raise ConfigError(f"{where}: expected a gymnasium.Space as {name} space, found {space!r}")
        with naming_setting(f"{where}.{name}"):
            spaces.leaves_of(space)
    return EnvSpec(observation, action)


def _read(found: Any, where: str) -> Space[Any]:
    """The space of one description."""
    kind = found.get("type") if isinstance(found, Mapping) else None
    if not isinstance(kind, str) or kind not in _KEYS:
        raise ConfigError(f"{where}: expected a mapping with type: {', '.join(_KEYS)}, found {found!r}")
    needed, optional = _KEYS[kind]
    given = {key: value for key, value in found.items() if key != "type"}
    for key in given:
        if key not in needed | optional:
            raise ConfigError(f"{where}.{key}: unknown key of a {kind}{nearest(str(key), needed | optional)}")
    if missing := sorted(needed - given.keys()):
        raise ConfigError(f"{where}.{missing[0]}: expected a value, found none")
    try:
        return _make(kind, given, where)
    except (AssertionError, MemoryError, OverflowError, SyntaxError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: no {kind} can be made of {given}: {error}") from error


def _make(kind: str, given: Mapping[str, Any], where: str) -> Space[Any]:
    match kind:
        case "Box":
            dtype = np.dtype(given.get("dtype", "float32"))
            low, high = (np.asarray(given[key], dtype) for key in ("low", "high"))
            if "shape" not in given and not low.ndim:
                raise ConfigError(f"{where}.shape: expected a list, [] for a single number, found none")
            shape = tuple(given["shape"]) if "shape" in given else low.shape
            if (size := math.prod(shape) * dtype.itemsize) > MOST_BYTES:
                raise ConfigError(
                    f"{where}.shape: expected at most {MOST_BYTES} bytes, found {list(shape)}, {size} bytes"
                )
            low, high = (np.broadcast_to(bound, shape) for bound in (low, high))
            return gymnasium.spaces.Box(low, high, shape, dtype.type)
        case "Discrete" | "MultiDiscrete" | "MultiBinary":
            space: Space[Any] = getattr(gymnasium.spaces, kind)(**given)
            return space
        case "Dict":
            if not isinstance(given["spaces"], Mapping):
                raise ConfigError(f"{where}.spaces: expected a mapping of names to spaces, found {given['spaces']!r}")
            parts = {key: _read(part, f"{where}.spaces.{key}") for key, part in given["spaces"].items()}
            return gymnasium.spaces.Dict(parts)
    return gymnasium.spaces.Tuple([_read(part, f"{where}.spaces.{i}") for i, part in enumerate(given["spaces"])])


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
        FaultError: the code of the environment raised another exception.
    """
    place = f"env {config.target} {config.params or ''}".rstrip()
    try:
        with naming_fault(place):
            env = _make_env(config, seed, place)
    except SystemExit as exit_:
        raise PluginError(f"env {config.target}: {EnvExitError(exit_)} while it was built") from exit_
    if not (isinstance(env, gymnasium.Env) or is_vector(env)):
        raise PluginError(f"env {config.target}: expected a gymnasium.Env or VectorEnv, found {type(env).__name__}")
    if is_vector(env) and (config.rate_hz is not None or config.safe_stop is not None):
        close_env(env)
        raise PluginError(
            f"env {config.target}: expected a plain environment with env.rate_hz or env.safe_stop, since a robot is "
            "one lane, found a vector environment"
        )
    return env


def _make_env(config: EnvConfig, seed: int | None, place: str) -> AnyEnv:
    """The environment within its wrappers.

    Raises:
        PluginError: the configuration does not suit the target, or a package is not installed.
        Exception: the code of the environment raised it.
    """
    try:
        return _wrap(config.build(optional=None if seed is None else {"seed": seed}), config.wrappers)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise PluginError(f"{place}: {error}{_install_hint(error)}") from error
    except Exception as error:
        if _is_gymnasiums(error):
            raise PluginError(f"{place}: {first_line(error)}") from error
        raise


def _is_gymnasiums(error: Exception) -> bool:
    """Whether gymnasium itself raised an error, since a parameter is wrong, and no code of a user took part."""
    modules = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
    return all(module.startswith(("gymnasium.", "common.lanes.", "common.plugins.")) for module in modules)


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
    name = f"env {config.target} {config.params or ''}".rstrip() if config else "env"
    if not isinstance(envs, list):
        spec = spec_of(envs)
        return VectorLanes(envs, spec, picks, name) if is_vector(envs) else PlainLanes([envs], spec, picks, name)
    return PlainLanes(envs, spec_of(envs[0]), picks, name)


def picks_of(config: EnvConfig) -> Picks:
    """The values that a configuration picks from ``info``."""
    columns = {key: Column.of(f"info/{key}", dtype, shape) for key, (dtype, shape) in config.info_columns.items()}
    return Picks(columns, config.intervention)


def spec_of(env: AnyEnv) -> EnvSpec:
    """The spaces of one lane as they are recorded: float64 as float32.

    Raises:
        ConfigError: a space cannot be recorded.
    """
    prefix = "single_" if is_vector(env) else ""
    spec = EnvSpec(*(getattr(env, f"{prefix}{name}") for name in ("observation_space", "action_space")))
    for space in (spec.observation_space, spec.action_space):
        spaces.leaves_of(space)  # Before anybody else looks at them: the error names spaces of another package.
    return narrowed(spec)


def narrowed(spec: EnvSpec) -> EnvSpec:
    """The same spaces, with float64 as float32."""
    return EnvSpec(spaces.narrow(spec.observation_space), spaces.narrow(spec.action_space))


def read_spec(config: EnvConfig) -> EnvSpec:
    """The spaces of one lane as they are recorded: those of ``env.spaces``; without it, the environment is built.

    Raises:
        PluginError, ConfigError: see ``build_env`` and ``read_spaces``.
    """
    if config.spaces is not None:
        return narrowed(read_spaces(config.spaces))
    env = build_env(config)
    try:
        return spec_of(env)
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
