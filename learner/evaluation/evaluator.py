"""The evaluator of a run, and the environment on which it scores the policy."""

from __future__ import annotations

import numpy as np

from common.config.run_config import EvaluatorArguments, EvaluatorConfig
from common.envs import Env, build_env, spec_of
from common.errors import ConfigError
from common.interfaces import Agent, Evaluation, Evaluator
from common.plugins.part_config import EnvConfig


def build_eval_env(config: EnvConfig, training: Env) -> Env:
    """Build the environment of evaluations, which must have the spaces of ``training``.

    Raises:
        PluginError: it cannot be built.
        ConfigError: its observation or action space differs from that of training.
    """
    env = build_env(config.for_evaluation())
    expected, found = spec_of(training), spec_of(env)
    if found != expected:
        env.close()
        raise ConfigError(f"env.eval_params: expected the spaces of training, {expected}, found {found}")
    return env


def build_evaluator(env: Env, config: EvaluatorConfig) -> Evaluator:
    """Build the evaluator that ``evaluator.target`` names.

    Raises:
        PluginError: it cannot be loaded or built.
    """
    evaluator: Evaluator = config.build(**EvaluatorArguments(env=env, config=config))
    return evaluator


class DefaultEvaluator:
    """Scores the mean undiscounted return of greedy episodes (border's ``DefaultEvaluator``).

    Episode i begins with ``reset(seed=config.seed + i)``, so that all evaluations of a run see the same episodes.

    Args:
        env: no other code steps it.
        config: episodes, seed, and the steps after which an episode is cut off.
    """

    def __init__(self, env: Env, config: EvaluatorConfig) -> None:
        self._env = env
        self._config = config

    def evaluate(self, agent: Agent) -> Evaluation:
        returns = np.array([self._episode(agent, i) for i in range(self._config.episodes)])
        score = float(returns.mean())
        return Evaluation(
            score,
            {
                "eval_reward": score,
                "eval_reward_std": float(returns.std()),
                "eval_reward_min": float(returns.min()),
                "eval_reward_max": float(returns.max()),
            },
        )

    def _episode(self, agent: Agent, index: int) -> float:
        """Play one episode; return the sum of its rewards."""
        obs, _ = self._env.reset(seed=self._config.seed + index)
        total = 0.0
        for _ in range(self._config.max_steps):
            action = agent.sample(np.asarray(obs)[None])[0]
            obs, reward, terminated, truncated, _ = self._env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return total
