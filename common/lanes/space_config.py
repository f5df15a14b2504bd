"""Spaces that a configuration describes, so that a learner need not build the environment.

    env:
      spaces:
        observation: {type: Dict, spaces: {camera: {type: Box, low: 0, high: 255, shape: [3, 64, 64], dtype: uint8},
                                           state: {type: Box, low: -.inf, high: .inf, shape: [7]}}}
        action: {type: Box, low: -1, high: 1, shape: [4]}

or ``spaces: module:attr``, a function without arguments that returns both spaces, or an object with the attributes
``observation_space`` and ``action_space``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from gymnasium import Space, spaces

from common.errors import ConfigError
from common.hints import nearest
from common.interfaces import EnvSpec
from common.plugins import part_loading
from common.plugins.part_loading import keeping_globals

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


def read_spaces(found: str | Mapping[str, Any], where: str = "env.spaces") -> EnvSpec:
    """The spaces that a configuration describes, or that the factory returns whose ``module:attr`` it names.

    Raises:
        ConfigError: a description is wrong, or the factory gives something else.
        PluginError: the factory cannot be loaded.
    """
    if isinstance(found, str):
        factory = part_loading.load_part(found)
        with keeping_globals(found):
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
    return EnvSpec(observation, action)


def _read(found: Any, where: str) -> Space[Any]:
    """The space of one description.

    Raises:
        ConfigError: the description lacks a key, has an unknown key, or a value does not fit.
    """
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
    except (AssertionError, MemoryError, OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: no {kind} can be made of {given}: {error}") from error


def _make(kind: str, given: Mapping[str, Any], where: str) -> Space[Any]:
    match kind:
        case "Box":
            dtype = np.dtype(given.get("dtype", "float32"))
            low, high = (np.asarray(given[key], dtype) for key in ("low", "high"))
            if "shape" not in given and not low.ndim:
                raise ConfigError(f"{where}.shape: expected a list, [] for a single number, found none")
            shape = tuple(given["shape"]) if "shape" in given else low.shape
            low, high = (np.broadcast_to(bound, shape) for bound in (low, high))
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(given["n"], start=given.get("start", 0))
        case "MultiDiscrete":
            return spaces.MultiDiscrete(given["nvec"], start=given.get("start"))
        case "MultiBinary":
            return spaces.MultiBinary(given["n"])
        case "Dict":
            if not isinstance(given["spaces"], Mapping):
                raise ConfigError(f"{where}.spaces: expected a mapping of names to spaces, found {given['spaces']!r}")
            parts = {key: _read(part, f"{where}.spaces.{key}") for key, part in given["spaces"].items()}
            return spaces.Dict(parts)
    return spaces.Tuple([_read(part, f"{where}.spaces.{i}") for i, part in enumerate(given["spaces"])])
