"""A safe stop: the action or call with which an actor stops its robot when no agent controls it (``env.safe_stop``)."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import gymnasium
import numpy as np

from common.errors import ConfigError, PluginError
from common.lanes.lanes import AnyEnv, Lanes
from common.lanes.plain_lanes import PlainLanes
from common.plugins.part_config import EnvConfig
from common.plugins.part_loading import load_part

log = logging.getLogger(__name__)
SafeStop = Callable[[AnyEnv], None]
"""Stops one environment. It logs what the environment raises, and raises nothing itself."""
LOCK_OUT: Final = "lock_out_person"
"""The name of a method of wrappers: from its call to the next ``reset``, a wrapper executes no person's actions."""


def build_safe_stop(config: EnvConfig) -> SafeStop:
    """The safe stop that a configuration names; without one, it does nothing.

    Raises:
        PluginError: the callback cannot be loaded.
    """
    named = config.safe_stop
    if named is None:
        return lambda _: None
    if not isinstance(named, str):
        return partial(_stop, partial(_step, value=named))
    if ":" in named:
        return partial(_stop, load_part(named))
    return partial(_stop, lambda env: _method_of(env, named)())


def stop_safely(lanes: Lanes, config: EnvConfig) -> None:
    """Make a safe stop in each environment of these lanes; a watchdog of the lanes notices if it hangs."""
    if config.safe_stop is None:
        return
    assert isinstance(lanes, PlainLanes), "build_env refuses vector environments with a safe stop"
    stop = build_safe_stop(config)
    lanes.busy.since = time.monotonic()
    for env in lanes.envs:
        stop(env)
    lanes.busy.since = math.inf


def _stop(how: Callable[[AnyEnv], object], env: AnyEnv) -> None:
    try:
        how(env)
    except (Exception, SystemExit):
        log.critical("the safe stop failed: the robot may still move", exc_info=True)
    else:
        log.info("a safe stop was made")


def _step(env: AnyEnv, value: Any) -> None:
    """Take one step with the safe action, after a person can no longer replace it.

    Otherwise a person's action could be the robot's last one. The robot would then go on moving by it, although no
    process reads the person's device any more.
    """
    if env.has_wrapper_attr(LOCK_OUT):
        env.get_wrapper_attr(LOCK_OUT)()
    env.step(as_action(env.action_space, value))


def check_safe_stop(config: EnvConfig, space: gymnasium.Space[Any], env: AnyEnv | None = None) -> None:
    """Check that the safe stop is possible. Nothing is stopped.

    Args:
        config: may name a safe stop.
        space: of actions.
        env: has the method, if the safe stop is a method; None if the environment is not built.

    Raises:
        ConfigError: the space does not have the stop's action.
        PluginError: the callback cannot be loaded, or the environment has no such method.
    """
    named = config.safe_stop
    if named is None:
        return
    if not isinstance(named, str):
        as_action(space, named)
    elif env is not None:  # A learner without the environment need not have the callback either.
        _ = load_part(named) if ":" in named else _method_of(env, named)


def as_action(space: gymnasium.Space[Any], value: Any, where: str = "env.safe_stop") -> Any:
    """The action that a number, a list or a mapping of a configuration stands for.

    Raises:
        ConfigError: the space has no such action.
    """
    if isinstance(space, gymnasium.spaces.Dict) and isinstance(value, dict) and value.keys() == space.keys():
        return {key: as_action(inner, value[key], f"{where}.{key}") for key, inner in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple) and isinstance(value, list | tuple) and len(value) == len(space):
        return tuple(as_action(inner, value[i], f"{where}.{i}") for i, inner in enumerate(space))
    problem = ConfigError(f"{where}: expected an action of {space}, found {value!r}")
    try:
        found = np.asarray(value, space.dtype)
        fits = bool(np.allclose(found, value)) and space.contains(found)
    except (TypeError, ValueError, OverflowError):
        raise problem from None
    if not fits:
        raise problem
    return found[()]


def _method_of(env: AnyEnv, name: str) -> Callable[[], object]:
    try:
        found = env.get_wrapper_attr(name)
    except AttributeError:
        found = None
    if not callable(found):
        raise PluginError(f"env.safe_stop: expected a method of the environment, found {name!r}, which {env} lacks")
    method: Callable[[], object] = found
    return method
