"""Wrappers of environments, for ``env.wrappers``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from common.action_masks import MASK, component_sizes, discrete_leaves
from common.data import Array
from common.errors import ConfigError, PluginError
from common.lanes.vector_lanes import is_vector
from common.leaves import on_host

KEY: Final = "discounted_return"


class PythonActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Gives an environment its actions in Python's own types: an ``int`` for a numpy integer, a list for an array.

    Actors give numpy's types, as ``action_space.sample`` does. Some environments accept only an ``int``, or send their
    actions as JSON.
    """

    def action(self, action: Any) -> Any:
        return _to_python(action)


def _to_python(action: Any) -> Any:
    if isinstance(action, Mapping):
        return {key: _to_python(part) for key, part in action.items()}
    return tuple(map(_to_python, action)) if isinstance(action, tuple) else action.tolist()


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts ``info["action_mask"]`` into observations, where agents obey it.

    A Dict observation gets the leaf ``action_mask``; any other becomes the leaf ``observation`` beside it. The mask has
    an element for each action, 1 if it is allowed; of MultiDiscrete actions it has those of all components, and of Dict
    and Tuple actions those of all discrete leaves. ``info`` may have them in the structure that ``sample(mask)`` of the
    action space takes. The info of an episode's last step may lack the mask: then everything is allowed.

    Raises:
        ConfigError: actions have no Discrete or MultiDiscrete leaf, observations have a mask already, or the
            environment is a vector environment.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        where = "MaskFromInfo"
        if is_vector(env):
            raise ConfigError(
                f"{where}: expected a plain environment, found a vector environment; wrap each of its copies, or set "
                "envs_per_actor"
            )
        super().__init__(env)
        space, leaves = env.observation_space, discrete_leaves(env.action_space)
        if not leaves:
            raise ConfigError(f"{where}: expected Discrete or MultiDiscrete actions, found {env.action_space}")
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}
        if MASK in parts:
            raise ConfigError(f"{where}: observations have a leaf '{MASK}' already; remove this wrapper")
        self._is_dict = isinstance(space, spaces.Dict)
        self._size = sum(sum(component_sizes(leaf)) for leaf in leaves.values())
        self.observation_space = spaces.Dict({**parts, MASK: spaces.Box(0, 1, (self._size,), np.int8)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._join(obs, info, may_lack=False), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._join(obs, info, may_lack=terminated or truncated), reward, terminated, truncated, info

    def _join(self, obs: Any, info: Mapping[str, Any], *, may_lack: bool) -> dict[str, Any]:
        """The observation with its mask."""
        mask = info.get(MASK)
        if mask is None and not may_lack:
            raise PluginError(
                f"MaskFromInfo: expected info['{MASK}'] after each reset and step, found "
                f"{', '.join(map(str, info)) or 'an empty info'}"
            )
        allowed = np.ones(self._size, np.int8) if mask is None else _as_one(mask, self.action_space)
        return {**(obs if self._is_dict else {"observation": obs}), MASK: allowed}


def _as_one(mask: Any, actions: gymnasium.Space[Any]) -> Array:
    """The masks of all components, one after another, as int8; ``mask`` may have the structure of the action space."""
    if isinstance(actions, spaces.Dict) and isinstance(mask, Mapping):
        parts = [(mask.get(key), part) for key, part in actions.spaces.items() if discrete_leaves(part)]
    elif isinstance(actions, spaces.Tuple) and isinstance(mask, tuple):
        parts = [(each, part) for each, part in zip(mask, actions.spaces, strict=False) if discrete_leaves(part)]
    elif isinstance(mask, tuple | list) and np.ndim(mask[0]):
        parts = [(each, actions) for each in mask]
    elif mask is None:
        raise PluginError(f"MaskFromInfo: expected a mask for {actions}, found none")
    else:
        return np.asarray(mask).astype(np.int8).reshape(-1)
    return np.concatenate([_as_one(each, part) for each, part in parts])


def discounted_return(env: Any, discount_factor: float) -> DiscountedReturn | DiscountedReturns:
    """Let an environment or a vector environment report the return so far of each episode, for ``normalize_rewards``.

    ``G_t = r_t + discount_factor * G_{t-1}``, with ``G = 0`` before an episode begins, is in the step's ``info`` as
    ``discounted_return``; ``env.info: {discounted_return: float32}`` records it.

    Args:
        env: a ``gymnasium.Env``, or a vector environment of any mode of autoreset.
        discount_factor: the agent's.

    Raises:
        ConfigError: it is out of range.
    """
    if not 0 <= discount_factor <= 1:
        raise ConfigError(f"discounted_return: expected a discount_factor from 0 to 1, found {discount_factor}")
    return DiscountedReturns(env, discount_factor) if is_vector(env) else DiscountedReturn(env, discount_factor)


class DiscountedReturn(gymnasium.Wrapper[Any, Any, Any, Any]):
    """See ``discounted_return``."""

    def __init__(self, env: gymnasium.Env[Any, Any], discount_factor: float) -> None:
        super().__init__(env)
        self._discount_factor, self._return = discount_factor, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._return = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._return = float(reward) + self._discount_factor * self._return
        return obs, reward, terminated, truncated, {**info, KEY: np.float32(self._return)}


class DiscountedReturns:
    """See ``discounted_return``. It has all attributes of the vector environment, which need not be gymnasium's."""

    def __init__(self, env: Any, discount_factor: float) -> None:
        self._env, self._discount_factor = env, discount_factor
        self._returns = np.zeros(int(env.num_envs))
        self._ended = np.ones(int(env.num_envs), bool)  # The lanes that are at the end of an episode, or before one.

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # A copy is asked for such names before it has its environment.
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the lanes in the mask of ``options``; without a mask, all lanes."""
        mask = (arguments.get("options") or {}).get("reset_mask")
        self._ended = np.ones_like(self._ended) if mask is None else self._ended | mask
        obs, infos = self._env.reset(**arguments)
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all lanes. With autoreset at the next step, the step that only resets a lane has the return 0."""
        obs, reward, terminated, truncated, infos = self._env.step(actions)
        former = np.where(self._ended, 0.0, self._returns)
        self._returns = np.asarray(on_host(reward), np.float64) + self._discount_factor * former
        self._ended = np.asarray(on_host(terminated), bool) | np.asarray(on_host(truncated), bool)
        return obs, reward, terminated, truncated, self._add_to(infos)

    def _add_to(self, infos: dict[str, Any]) -> dict[str, Any]:
        """The infos with the returns, which are also in ``final_info`` of lanes that were reset at the same step."""
        returns = self._returns.astype(np.float32)
        final = infos.get("final_info", {})
        if isinstance(final, np.ndarray):  # One dict for each lane, or None.
            for lane, info in enumerate(final):
                if info is not None:
                    info[KEY] = returns[lane]
        else:
            final = {**final, KEY: returns}
        return {**infos, KEY: returns, "final_info": final}
