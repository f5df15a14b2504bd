"""Transitions towards goals that were reached later in the episode."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import gymnasium
import numpy as np

from common.data import Array, Schema
from common.errors import ConfigError, PluginError
from common.lanes.lanes import close_env
from common.plugins.part_loading import load_part
from learner.replay.view import Plan, Rows
from learner.views.columns import next_name
from learner.views.paths import follow
from learner.views.transitions import Transitions

GOAL: Final = "obs/desired_goal"
ACHIEVED: Final = "obs/achieved_goal"

ComputeReward = Callable[[Array, Array, dict[str, Any]], Array]
"""Rewards ``[n]`` for goals that were achieved ``[n, …]`` and desired ``[n, …]``; the third argument is ``{}``."""


MakeEnv = Callable[[], gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]]


class Hindsight(Transitions):
    """One-step transitions, most of them with a goal that was reached later: HER, arXiv:1707.01495, strategy *future*.

    In k of k + 1 draws, ``obs/desired_goal`` and ``next_obs/desired_goal`` are the ``obs/achieved_goal`` of a later row
    of the same episode, any of them with the same probability, and ``reward`` is computed again. ``terminated`` stays
    as it was. Observations are those of gymnasium-robotics' ``GoalEnv``.

    Args:
        schema: of the rows, with ``obs/achieved_goal`` and ``obs/desired_goal`` of the same dtype and shape.
        stack: frames in one observation; more than 1 is refused.
        make_env: makes the run's environment, whose ``compute_reward`` is used if no function is named; None if the
            learner builds no environment.
        compute_reward: a function ``(achieved_goal, desired_goal, info)`` for many goals at once, as module:attr; null
            uses that of the environment.
        k: the number of draws whose goal is replaced for each draw that keeps its goal, at least 0.
        horizon: the most rows ahead from which a goal is taken, at least 1. With the length of an episode or more, it
            is the strategy of the paper.

    Raises:
        ConfigError: the schema has no goals, the environment computes no rewards, or a value is out of range.
        PluginError: the function cannot be loaded, or the environment cannot be built.
    """

    def __init__(
        self,
        schema: Schema,
        stack: int = 1,
        make_env: MakeEnv | None = None,
        *,
        compute_reward: str | None = None,
        k: float = 4.0,
        horizon: int = 50,
    ) -> None:
        super().__init__(schema, stack)
        goal, achieved = schema.by_name.get(GOAL), schema.by_name.get(ACHIEVED)
        if goal is None or achieved is None or (goal.dtype, goal.shape) != (achieved.dtype, achieved.shape):
            raise ConfigError(
                f"replay.view: Hindsight needs observations with goals, {GOAL} and {ACHIEVED} of one shape, found "
                f"{goal or 'no'} and {achieved or 'no'} such columns"
            )
        if not (0 <= k < math.inf and horizon >= 1 and stack == 1):
            raise ConfigError(
                "replay.view.params: expected a finite k >= 0, horizon >= 1 and no frame stack, found "
                f"{k}, {horizon}, {stack}"
            )
        self._compute: ComputeReward = load_part(compute_reward) if compute_reward else _reward_of(make_env)
        self._share, self._horizon = k / (k + 1), horizon

    def _plan_path(self, rows: Rows, index: Array, path: Array) -> Plan:
        plan = super()._plan_path(rows, index, path)
        goal, reward = rows.take(GOAL, index), rows.take("reward", index)
        replaced = np.flatnonzero(rows.rng.random(len(index)) < self._share)
        source = self._choose_later(rows, index[replaced])
        goal[replaced] = rows.take(ACHIEVED, source)
        reward[replaced] = self._compute_rewards(rows.take(ACHIEVED, path[replaced]), goal[replaced])
        also = index.copy()
        also[replaced] = source
        takes = {name: take for name, take in plan.takes.items() if name not in (GOAL, next_name(GOAL), "reward")}
        return Plan(takes, plan.lowest, {GOAL: goal, next_name(GOAL): goal.copy(), "reward": reward}, also=(also,))

    def _compute_rewards(self, achieved: Array, desired: Array) -> Array:
        """The rewards ``[n]`` for goals ``[n, …]``."""
        found = np.asarray(self._compute(achieved, desired, {}))
        is_one = found.shape == () and len(desired) == 1  # Functions that squeeze their result.
        if not (is_one or found.shape == (len(desired),)) or found.dtype.kind not in "biuf":
            raise PluginError(
                f"replay.view: compute_reward(achieved_goal, desired_goal, info): expected a reward for each of "
                f"{len(desired)} goals, [{len(desired)}], found {found.dtype} {list(found.shape)}: compute along the "
                "last axis (axis=-1), or name another function as replay.view.params.compute_reward: module:attr"
            )
        return found

    def _choose_later(self, rows: Rows, index: Array) -> Array:
        """A later row of the same episode for each row ``[n]``, within the horizon and as far as rows are known."""
        path = follow(rows, index, self._horizon)
        different = (path[:, 1:] != path[:, :-1]) & (path[:, 1:] >= 0)
        ahead = different.sum(axis=1)
        chosen: Array = path[np.arange(len(path)), 1 + (rows.rng.random(len(path)) * ahead).astype(np.int64)]
        return chosen


def _reward_of(make_env: MakeEnv | None) -> ComputeReward:
    """The ``compute_reward`` of an environment or of one of its wrappers."""
    advice = "name a function as replay.view.params.compute_reward: module:attr"
    if make_env is None:
        raise ConfigError(f"replay.view: this learner builds no environment that could compute rewards: {advice}")
    env = make_env()
    if isinstance(env, gymnasium.Env) and env.has_wrapper_attr("compute_reward"):
        compute: ComputeReward = env.get_wrapper_attr("compute_reward")
        return compute
    close_env(env)
    raise ConfigError(f"replay.view: {env} has no compute_reward(achieved_goal, desired_goal, info): {advice}")
