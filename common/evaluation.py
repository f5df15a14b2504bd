"""The evaluator of a run, on the learner's host or in an actor that evaluates."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from copy import deepcopy
from functools import partial
from typing import Any, Final

import gymnasium
import numpy as np

from common.config.actor_config import ActorConfig, EvaluatorArguments, EvaluatorConfig
from common.data import RUN_KEYS, Array, require_record
from common.errors import ConfigError, PluginError
from common.interfaces import Agent, EnvSpec, Evaluation, Evaluator
from common.lanes.building import build_env, lanes_of, spec_of
from common.lanes.lanes import AnyEnv, Lanes, close_env
from common.lanes.pace import Pace
from common.lanes.safe_stop import build_safe_stop, check_safe_stop
from common.lanes.stacking import Stacker
from common.lanes.vector_lanes import is_vector
from common.lanes.watched_envs import Watch
from common.plugins.part_config import EnvConfig, require_role
from common.plugins.part_loading import naming_fault
from common.spaces import leaves_of

EVALUATION_SEED: Final = 1000
"""Episode i of an evaluation begins with ``reset(seed=EVALUATION_SEED + i)``. Evaluations must not play the episodes of
training, whose environments have the seeds from the run's ``seed`` on, which is mostly 0 or little more."""
MAX_ENVS: Final = 32
"""The most environments of one evaluation. More would share the cost of an inference no better, and need memory."""


def score_agent(evaluator: Evaluator, agent: Agent) -> tuple[float, dict[str, float], float]:
    """Switch the agent to eval mode and score it: every score of a run comes from here.

    Returns:
        The score and the record of the evaluation, and the seconds that it took.

    Raises:
        PluginError: the evaluator did not give a score and a record.
    """
    agent.eval()  # Before each evaluation: it also begins the draws of ``eval_epsilon`` anew.
    began = time.perf_counter()
    found = evaluator.evaluate(agent)
    seconds = time.perf_counter() - began
    if not isinstance(found, Evaluation):
        raise PluginError(f"evaluator.evaluate: expected Evaluation(score, record), found {type(found).__name__}")
    require_record({"score": found.score}, "evaluator.evaluate", ())
    require_record(found.record, "evaluator.evaluate", RUN_KEYS)
    return float(found.score), {key: float(value) for key, value in found.record.items()}, seconds


class DefaultEvaluator:
    """Scores the mean undiscounted return of greedy episodes (border's ``DefaultEvaluator``).

    Of an environment with several agents, an episode is a game, and the mean is over all agents of all games.

    Episode i begins with ``reset(seed=seed + i)``, so that all evaluations of a run see the same episodes. Up to
    ``MAX_ENVS`` episodes are played at the same time, each in a separate environment.

    Args:
        env: a plain environment or a vector environment; no other code steps it.
        config: episodes, and the steps after which an episode is cut off.
        env_config: how many frames the agent sees, and their dtypes; None: observations of the environment, unchanged.
        make_env: makes one more environment; None: all episodes are played in ``env``.
        seed: of the first episode.
    """

    def __init__(
        self,
        env: AnyEnv,
        config: EvaluatorConfig,
        env_config: EnvConfig | None = None,
        make_env: Callable[[], AnyEnv] | None = None,
        seed: int = EVALUATION_SEED,
    ) -> None:
        self._seed = seed
        self._env, self._config, self._env_config, self._make_env = env, config, env_config, make_env
        self._frames = env_config.frame_stack if env_config is not None else 1
        self._lanes: Lanes | None = None
        self._results = Counter[int]()  # Games against others, by their results.

    def evaluate(self, agent: Agent) -> Evaluation:
        lanes = self._lanes = self._lanes or self._make_lanes()
        rounds = range(0, self._config.episodes, lanes.n // lanes.seats)
        self._results.clear()
        returns = np.concatenate([self._play(agent, lanes, first) for first in rounds])
        score = float(returns.mean())
        return Evaluation(
            score,
            {
                "eval_reward": score,
                "eval_reward_std": float(returns.std()),
                "eval_reward_min": float(returns.min()),
                "eval_reward_max": float(returns.max()),
                **self._result_shares(),
            },
        )

    def _result_shares(self) -> dict[str, float]:
        """The shares of games that were won, drawn and lost; empty if nobody played against others."""
        names = {"eval_wins": 1, "eval_draws": 0, "eval_losses": -1} if self._results else {}
        return {name: self._results[result] / self._results.total() for name, result in names.items()}

    def _make_lanes(self) -> Lanes:
        """The lanes in which episodes are played; more environments are built at the first evaluation."""
        # Nothing is recorded, so nobody need hear that info lacks a value, as it does if others play than in training.
        config = self._env_config.model_copy(update={"info": {}}) if self._env_config is not None else None
        if is_vector(self._env):
            return lanes_of(self._env, config)
        wanted = min(self._config.episodes, MAX_ENVS)
        more = [self._make_env() for _ in range(wanted - 1)] if self._make_env is not None else []
        lanes = lanes_of([self._env, *more], config)
        lanes.wrap(RestingEnv)
        return lanes

    def _play(self, agent: Agent, lanes: Lanes, first: int) -> Array:
        """Play the episodes from ``first`` on, one in each lane; return the sums of their rewards, ``[k]``.

        An agent of an environment that never came has no sum.
        """
        count = min(lanes.n, (self._config.episodes - first) * lanes.seats)
        totals, runs, has_acted = np.zeros(lanes.n), np.arange(lanes.n) < count, np.zeros(lanes.n, bool)
        stacker = Stacker(lanes.spec, lanes.n, self._frames)
        lanes.reset(self._seed + first)
        for _ in range(self._config.max_steps):
            obs = lanes.observe()
            if lanes.begins is not None:
                agent.begin(lanes.begins)
            try:
                actions = agent.sample(stacker.add(obs, lanes.begins))
            except Exception:
                lanes.require_indices(obs)
                raise
            outcome = lanes.step(actions)
            acting = runs if outcome.taken is None else runs & outcome.taken
            totals[acting] += outcome.reward[acting]
            has_acted |= acting
            if outcome.ended is not None:
                self._results.update(game.result for game in outcome.results if runs[game.lane])
                runs[lanes.over(outcome.ended)] = False
                if not runs.any():
                    break
        return totals[has_acted]


class RestingEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that plays one episode for each seed, and then rests until the next seed: its steps do nothing.

    While it rests, it shows the first observation of the episode: the last one may allow no action.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._rests, self._first = False, None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is None and self._rests:
            return self._first, {}
        self._rests = False
        obs, info = self.env.reset(seed=seed, options=options)
        self._first = deepcopy(obs)  # The environment may write its next observation into the same array.
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._rests:
            return self._first, 0.0, False, False, {}
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._rests = bool(terminated or truncated)
        return obs, reward, terminated, truncated, info


def open_evaluator(
    config: ActorConfig,
    training: EnvSpec | None,
    watch: Watch,
    stack: ExitStack,
    film: Callable[[EnvConfig], AbstractContextManager[AnyEnv]] | None = None,
    *,
    policy: EnvSpec | None = None,
    seed: int = EVALUATION_SEED,
) -> Evaluator:
    """Build the evaluator of a run and its first environment.

    Args:
        config: names the evaluator and the environment.
        training: the spaces of one lane as they are recorded; None: they are not compared.
        watch: watches every environment that the evaluator steps.
        stack: stops the environments safely and closes them.
        film: opens the one environment that is filmed while it plays all episodes; None: nothing is filmed.
        policy: the spaces of a saved policy, of which the environment may have others, but not of another layout; None:
            they are not compared.
        seed: of the first episode.

    Raises:
        CrossborderError: the evaluator or its environment cannot be built, or this environment has other spaces than
            the environment of training, or spaces in which the policy cannot act.
    """
    env_config = config.env.for_evaluation()
    stop_safely = build_safe_stop(env_config)
    rate_hz = env_config.rate_hz if env_config.eval_at_rate else None

    def make_env() -> AnyEnv:
        if film is None:
            env = build_eval_env(config.env, training)
            stack.callback(close_env, env)
        else:
            env = stack.enter_context(film(env_config))
        if policy is not None and _layout(found := spec_of(env)) != _layout(policy):
            raise ConfigError(f"env: expected spaces in which the policy can act, {policy}, found {found}")
        check_safe_stop(env_config, env.action_space, env)
        stack.enter_context(watch.stopping(partial(stop_safely, env)))
        return watch.over(env, None if rate_hz is None else Pace(rate_hz, watch.abandoned))

    make_more = make_env if rate_hz is None and film is None else None  # A robot exists once.
    return build_evaluator(config, make_env(), make_more, seed)


def build_evaluator(
    config: ActorConfig, env: AnyEnv, make_env: Callable[[], AnyEnv] | None, seed: int = EVALUATION_SEED
) -> Evaluator:
    """Build the evaluator that the configuration names.

    Args:
        config: names the evaluator.
        env: its environment.
        make_env: makes one more environment; None: all episodes are played in ``env``.
        seed: of the first episode.

    Raises:
        PluginError: it is no evaluator.
    """
    optional = {"env_config": config.env.for_evaluation(), "make_env": make_env, "seed": seed}
    given = EvaluatorArguments(env=env, config=config.evaluator)
    with naming_fault(f"evaluator {config.evaluator.target}"):
        evaluator: Evaluator = config.evaluator.build(optional=optional, **given)
    require_role(evaluator, "evaluator", "evaluator.target")
    return evaluator


def _layout(spec: EnvSpec) -> list[dict[str, object]]:
    """The leaves of observations and actions, without the bounds of arrays of numbers."""
    box = gymnasium.spaces.Box
    each = [leaves_of(space) for space in (spec.observation_space, spec.action_space)]
    return [{path: (x.shape, x.dtype) if isinstance(x, box) else x for path, x in leaves.items()} for leaves in each]


def build_eval_env(config: EnvConfig, training: EnvSpec | None) -> AnyEnv:
    """Build an environment of evaluations, which must have the spaces of training.

    Args:
        config: of the environment in training.
        training: the spaces of one lane as they are recorded; None: they are not compared.

    Raises:
        PluginError: the environment cannot be built.
        ConfigError: its observation or action space differs from the space of training.
    """
    env = build_env(config.for_evaluation())
    found = spec_of(env)
    if training is not None and found != training:
        close_env(env)
        raise ConfigError(f"env.eval_params: expected the spaces of training, {training}, found {found}")
    return env
