"""Random steps in the run's environment before training, which show whether its values can be recorded."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

import numpy as np

from common.action_masks import MASK, RandomActions
from common.config.run_config import RunConfig
from common.data import Array, Column, Leaves, Schema
from common.errors import PluginError, RefusedError
from common.lanes.building import build_lanes
from common.lanes.lanes import Lanes
from common.process.clocks import Deadline
from common.spaces import columns_of, to_columns
from learner.replay.value_rules import ValueRules

log = logging.getLogger(__name__)
MAX_ROUNDS: Final = 1000
MAX_SECONDS: Final = 5.0
MIN_EPISODES: Final = 2
"""The second episode shows whether the environment begins episodes as it says."""


def try_env(config: RunConfig) -> None:
    """Play one actor's environment with random actions until two episodes have ended, and look at all its values.

    It plays at most ``MAX_ROUNDS`` rounds and ``MAX_SECONDS``. A robot is not moved: with ``env.rate_hz`` or
    ``env.safe_stop`` nothing is played. An exception of the environment is only logged, since it may refuse random
    actions; so are floats outside their bounds, since the learner counts and stores them.

    Raises:
        PluginError: the environment cannot be built, or returns a value that the learner would refuse.
    """
    if config.env.rate_hz is not None or config.env.safe_stop is not None:
        return
    lanes = build_lanes(config.env, 1, config.seed)
    try:
        rules = ValueRules.of(_schema(lanes), config.server)
        _play(lanes, rules)
        if lanes.masks is not None:
            log.info("%s: agents obey the masks of actions in obs/%s", lanes.name, MASK)
    except RefusedError as error:
        raise PluginError(f"{lanes.name}: {error}") from error
    finally:
        lanes.close()
    for name, count in rules.outside_found.items():
        if count:
            log.warning("%s: %s has values outside its space; widen the space, or clip the values", lanes.name, name)


def _schema(lanes: Lanes) -> Schema:
    return Schema((*columns_of("obs", lanes.spec.observation_space), Column("reward", "<f4")))


def _play(lanes: Lanes, rules: ValueRules) -> None:
    """Play with random actions, and look at all observations and rewards."""
    actions, deadline, ended = RandomActions(lanes.spec, lanes.n, 0), Deadline(MAX_SECONDS), 0
    lanes.reset(0)
    for _ in range(MAX_ROUNDS):
        obs = _call(lanes, lanes.observe)
        if obs is None:
            return
        _check(rules, obs, np.zeros(lanes.n))
        taken = actions.draw(obs)
        outcome = _call(lanes, partial(lanes.step, taken))
        if outcome is None:
            return
        _check(rules, outcome.obs, outcome.reward)
        if outcome.ended is not None:
            _check(rules, outcome.final_obs, outcome.reward[outcome.ended])
            ended += len(outcome.ended)
        if ended >= MIN_EPISODES * lanes.n or deadline.passed():
            return


def _check(rules: ValueRules, obs: Leaves, reward: Array) -> None:
    with np.errstate(over="ignore"):  # A reward beyond float32 becomes infinite, and is refused.
        rules.check({**to_columns("obs", obs), "reward": reward.astype(np.float32)}, len(reward))


def _call(lanes: Lanes, call: Any) -> Any:
    """The result of a call; None if the environment raised, which is logged."""
    try:
        return call()
    except PluginError:
        raise
    except (Exception, SystemExit):
        log.warning("%s: it raised in a trial with random actions", lanes.name, exc_info=True)
        return None
