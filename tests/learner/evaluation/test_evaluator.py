from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from common.config.run_config import EvaluatorConfig
from common.data import Array, Model, Record
from common.envs import build_env
from common.errors import ConfigError
from common.interfaces import Agent, Evaluation, ReplayBuffer
from common.plugins.part_config import EnvConfig
from learner.evaluation.evaluator import DefaultEvaluator, build_eval_env, build_evaluator


class SeedEnv(gymnasium.Env[Array, Any]):
    """Pays the seed of the reset once a step, for three steps; ends in turn by termination and truncation."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.seeds: list[int | None] = []
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self.seeds.append(seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        seed = self.seeds[-1] or 0
        done = self.steps == 3
        return np.zeros(1, np.float32), float(seed), done and seed % 2 == 0, done and seed % 2 == 1, {}


class WideEnv(SeedEnv):
    """Observations as wide as it is asked for."""

    def __init__(self, width: int, episodes: int = 0) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.episodes = episodes


class Idle(Agent):
    def sample(self, obs: Array) -> Array:
        return np.zeros(len(obs), np.int64)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        return None

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {}

    def sync_model(self, model: Model) -> None: ...

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return {}

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None: ...


def test_invariant_10_episode_i_starts_from_seed_plus_i_every_time() -> None:
    env = SeedEnv()
    evaluator = DefaultEvaluator(env, EvaluatorConfig(episodes=4, seed=10))
    first, second = evaluator.evaluate(Idle()), evaluator.evaluate(Idle())
    assert env.seeds == [10, 11, 12, 13] * 2
    assert first == second


def test_an_episode_that_does_not_end_is_cut_off() -> None:
    evaluation = DefaultEvaluator(SeedEnv(), EvaluatorConfig(episodes=1, seed=5, max_steps=2)).evaluate(Idle())
    assert evaluation.score == 10.0


def test_the_score_is_the_mean_undiscounted_return() -> None:
    evaluation = DefaultEvaluator(SeedEnv(), EvaluatorConfig(episodes=3, seed=1)).evaluate(Idle())
    assert evaluation.score == 6.0
    assert evaluation.record == {
        "eval_reward": 6.0,
        "eval_reward_std": float(np.std([3.0, 6.0, 9.0])),
        "eval_reward_min": 3.0,
        "eval_reward_max": 9.0,
    }


class Longest:
    """A user's evaluator: scores by the longest of so many episodes."""

    def __init__(self, env: SeedEnv, config: EvaluatorConfig, bonus: float) -> None:
        self._inner, self._bonus = DefaultEvaluator(env, config), bonus

    def evaluate(self, agent: Agent) -> Evaluation:
        evaluation = self._inner.evaluate(agent)
        return Evaluation(float(evaluation.record["eval_reward_max"]) + self._bonus, evaluation.record)


def test_an_own_evaluator_is_named_in_the_configuration() -> None:
    config = EvaluatorConfig(target=f"{__name__}:Longest", params={"bonus": 0.5}, episodes=3, seed=1)
    assert build_evaluator(SeedEnv(), config).evaluate(Idle()).score == 9.5


def test_the_environment_of_evaluations_has_the_params_of_its_own() -> None:
    config = EnvConfig(target=f"{__name__}:WideEnv", params={"width": 2}, eval_params={"episodes": 9})
    training = build_env(config.for_evaluation())
    env = build_eval_env(config, training)
    assert env.unwrapped.episodes == 9  # type: ignore[attr-defined]


def test_spaces_that_are_not_those_of_training_are_refused() -> None:
    config = EnvConfig(target=f"{__name__}:WideEnv", params={"width": 2}, eval_params={"width": 3})
    training = WideEnv(width=2)
    with pytest.raises(ConfigError, match=r"env.eval_params: expected the spaces of training, .*\(2,\).*\(3,\)"):
        build_eval_env(config, training)
