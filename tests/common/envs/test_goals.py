from __future__ import annotations

import numpy as np
import pytest

from common.envs.goals import TURN, Reach
from common.errors import ConfigError
from crossborder.testing import check_env


def test_the_arm_is_an_environment() -> None:
    check_env(Reach())
    check_env(Reach(n_joints=1, max_steps=5))


def test_the_tip_is_where_the_angles_put_it_and_actions_turn_the_joints() -> None:
    env = Reach(n_joints=2)
    obs, _ = env.reset(seed=0)
    for turns in (0, 3):
        for _ in range(turns):
            obs, *_ = env.step(np.array([1.0, -0.5], np.float32))
        first, second = np.arctan2(obs["observation"][2:], obs["observation"][:2])
        tip = [(np.cos(first) + np.cos(first + second)) / 2, (np.sin(first) + np.sin(first + second)) / 2]
        np.testing.assert_allclose(obs["achieved_goal"], tip, atol=1e-5)
        if not turns:
            before = np.array([first, second])
    turned = np.array([first, second]) - before
    np.testing.assert_allclose(np.cos(turned), np.cos([3 * TURN, -1.5 * TURN]), atol=1e-5)
    np.testing.assert_allclose(np.sin(turned), np.sin([3 * TURN, -1.5 * TURN]), atol=1e-5)


def test_a_step_pays_nothing_at_the_goal_and_minus_one_elsewhere_and_rewards_of_other_goals_can_be_computed() -> None:
    env = Reach(n_joints=2, radius=0.1)
    env.reset(seed=0)
    obs, reward, terminated, truncated, info = env.step(np.zeros(2, np.float32))
    assert (reward, terminated, truncated, info) == (-1.0, False, False, {"is_success": False})
    goals = np.stack([obs["achieved_goal"], obs["achieved_goal"] + [0.05, 0.05], obs["desired_goal"]])
    achieved = np.repeat(obs["achieved_goal"][None], 3, axis=0)
    assert env.compute_reward(achieved, goals, {}).tolist() == [0.0, 0.0, -1.0]


def test_episodes_are_truncated_and_goals_are_within_reach_and_reproducible() -> None:
    env = Reach(max_steps=3)
    goals = [env.reset(seed=seed)[0]["desired_goal"] for seed in range(200)]
    distance = np.linalg.norm(goals, axis=1)
    assert distance.max() <= 1
    assert np.median(distance) == pytest.approx(np.sqrt(0.5), abs=0.08), "equal areas have equal chance"
    np.testing.assert_array_equal(env.reset(seed=7)[0]["desired_goal"], goals[7])
    ends = [env.step(env.action_space.sample())[3] for _ in range(3)]
    assert ends == [False, False, True]


@pytest.mark.parametrize("wrong", [{"n_joints": 0}, {"radius": 0.0}, {"radius": float("nan")}, {"max_steps": 0}])
def test_values_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"^Reach: expected"):
        Reach(**wrong)
