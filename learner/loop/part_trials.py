"""Trials of a run's other parts for ``--check``: callbacks, an evaluator, and random steps in the environment.

The steps show whether the environment's values can be recorded.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import numpy as np

from common.action_masks import MASK, RandomActions
from common.config.run_config import RunConfig
from common.data import Array, Column, Leaves, Schema
from common.envs.players import FrozenPolicy
from common.errors import PluginError, RefusedError
from common.evaluation import build_eval_env, build_evaluator
from common.interfaces import EnvSpec, RunIdentity
from common.lanes.building import build_lanes
from common.lanes.lanes import AnyEnv, Lanes, close_env
from common.process.clocks import Deadline
from common.spaces import columns_of, to_columns
from learner.loop.run_records import Callbacks, facts_of
from learner.loop.trial import making_directory
from learner.replay.value_rules import ValueRules

log = logging.getLogger(__name__)


def try_callbacks(config: RunConfig) -> None:
    """Build the callbacks, with the directory of a run that is removed at once.

    Raises:
        PluginError, ConfigError: one cannot be built, or there is no place for temporary files.
    """
    with making_directory() as directory:
        facts = facts_of(config, RunIdentity(run_id="", incarnation=1))
        Callbacks.build(config.callbacks, facts | {"run_dir": directory})


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
    lanes.pool = _RandomOpponents(lanes.spec)
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


def try_evaluator(config: RunConfig, training: EnvSpec) -> None:
    """Build an environment of evaluations, and the evaluator, unless it is built in an actor. Nothing is scored.

    Args:
        config: of the run.
        training: the spaces of one lane as they are recorded.

    Raises:
        CrossborderError: one of them cannot be built, or the environment has other spaces.
    """

    def make_env() -> AnyEnv:
        env = build_eval_env(config.env, training)
        stack.callback(close_env, env)
        return env

    with ExitStack() as stack:
        env = make_env()
        if config.trainer.eval_interval and config.evaluator.process != "actor":
            build_evaluator(config, env, make_env if config.env.rate_hz is None else None)


class _RandomOpponents:
    """Stands for the earlier models of a run, which has none yet, and acts at random."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec, self.opt_steps = spec, 0

    def draw(self, _: np.random.Generator) -> FrozenPolicy:
        return self

    def sample(self, obs: Leaves, begins: Array, lanes: Array) -> Leaves:  # noqa: ARG002 - it has no memory
        return RandomActions(self.spec, len(lanes), 0).draw(obs)


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
