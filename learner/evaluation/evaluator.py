"""Scoring: greedy episodes on an environment of the learner's own (border's DefaultEvaluator)."""

from __future__ import annotations

import numpy as np

from common.config.run_config import EvaluatorArguments, EvaluatorConfig
from common.envs import Env
from common.interfaces import Agent, Evaluation, Evaluator


def build_evaluator(env: Env, config: EvaluatorConfig) -> Evaluator:
    """The evaluator that the configuration names."""
    evaluator: Evaluator = config.build(**EvaluatorArguments(env=env, config=config))
    return evaluator


class DefaultEvaluator:
    """Mean undiscounted return over ``episodes``; episode i starts from ``reset(seed=seed + i)``."""

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
        obs, _ = self._env.reset(seed=self._config.seed + index)
        total = 0.0
        for _ in range(self._config.max_steps):
            action = agent.sample(np.asarray(obs)[None])[0]
            obs, reward, terminated, truncated, _ = self._env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return total
