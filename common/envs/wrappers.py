"""Wrappers of environments, for ``env.wrappers``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, SupportsFloat

import gymnasium
import numpy as np

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


def discounted_return(env: Any, discount_factor: float) -> DiscountedReturn | DiscountedReturns:
    """Let an environment or a vector environment report the return so far of each episode, for ``normalize_rewards``.

    ``G_t = r_t + discount_factor * G_{t-1}``, with ``G = 0`` before an episode begins, is in the step's ``info`` as
    ``discounted_return``; ``env.info: {discounted_return: float32}`` records it.

    Args:
        env: a ``gymnasium.Env``, or a vector environment of any mode of autoreset.
        discount_factor: the agent's.
    """
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
