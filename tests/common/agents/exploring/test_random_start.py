from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.agents.exploring.random_start import RandomStart
from common.agents.sac import SAC
from common.agents.td3 import TD3
from common.config.run_config import RunConfig
from common.data import Array, Model, ModelVersion
from common.interfaces import EnvSpec
from common.settings import validate
from learner.loop.in_turns import train_in_turns
from tests.common.agents.parts import holding

SPEC = EnvSpec(
    gymnasium.spaces.Box(-1, 1, (2,), np.float32),
    gymnasium.spaces.Box(np.array([-1, 0], np.float32), np.array([1, 10], np.float32)),
)
ZERO = np.zeros(2, np.float32)
MEMORY = holding([(ZERO, (0.5, 5.0), 1.0, ZERO, False, False)], np.float32)


class Peak(gymnasium.Env[Array, Any]):
    """One step; pays for actions above 0.8 and costs a little for all others, the more the larger they are."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        value = float(action[0])
        return np.zeros(1, np.float32), 1.0 if value > 0.8 else -0.1 * abs(value), True, False, {}


def actions(agent: RandomStart, n: int = 4000) -> Array:
    """Actions that explore, as shares of the way from the lowest to the highest, ``[n, 2]``."""
    agent.train()
    shares: Array = (agent.sample(np.zeros((n, 2), np.float32)) - [-1, 0]) / [2, 10]
    return shares


@pytest.mark.parametrize("kind", [TD3, SAC])
def test_before_the_first_opt_step_actions_are_uniform_over_the_action_space(kind: type[RandomStart]) -> None:
    shares = actions(kind(SPEC, seed=0))
    assert shares.min() >= 0
    assert shares.max() <= 1
    for share in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(np.quantile(shares, share, axis=0), share, atol=0.03)


@pytest.mark.parametrize("kind", [TD3, SAC])
def test_from_the_first_opt_step_on_the_policy_explores(kind: type[RandomStart]) -> None:
    learner = kind(SPEC, seed=0, units=(8,), batch_size=4)
    started = actions(kind(SPEC, seed=0, units=(8,), random_opts=0)).std()
    learner.opt(MEMORY)
    assert actions(learner).std() == pytest.approx(started, rel=0.3)
    assert actions(learner).std() != pytest.approx(12**-0.5, rel=0.02)


def test_an_actor_goes_by_the_opt_steps_of_its_model() -> None:
    actor = TD3(SPEC, seed=0, random_opts=100)
    for opt_steps, is_random in ((0, True), (99, True), (100, False)):
        params = {name: value.numpy() for name, value in actor.model_info().items()}
        actor.sync_model(Model(ModelVersion(1, opt_steps), params))
        assert bool(actions(actor).std() > 0.25) == is_random


def test_without_exploration_no_action_is_random() -> None:
    agent = TD3(SPEC, seed=0)
    agent.eval()
    assert len(np.unique(agent.sample(np.zeros((10, 2), np.float32)), axis=0)) == 1


def test_a_resumed_agent_does_not_begin_again() -> None:
    agent = TD3(SPEC, seed=0, units=(8,), batch_size=4)
    agent.opt(MEMORY)
    resumed = TD3(SPEC, seed=1, units=(8,), batch_size=4)
    resumed.load_training_state(agent.training_state())
    assert actions(resumed).std() < 0.25


def test_td3_finds_a_reward_that_its_first_policy_never_comes_near(tmp_path: Path) -> None:
    config = {
        "run_dir": str(tmp_path / "run"),
        "env": {"target": "tests.common.agents.exploring.test_random_start:Peak"},
        "agent": {"target": "common.agents.td3:TD3", "params": {"units": [32], "lr": 0.001, "batch_size": 64}},
        "trainer": {"max_opts": 700, "warmup_period": 100, "eval_interval": 700},
        "evaluator": {"episodes": 1},
    }
    assert train_in_turns(validate(RunConfig, config)).best_score == 1.0
