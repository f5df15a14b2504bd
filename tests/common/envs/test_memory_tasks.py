"""The small tasks that need a memory."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from common.envs.memory_tasks import Cue, KeepElements
from common.errors import ConfigError
from crossborder.testing import check_env


def test_elements_that_are_kept_are_those_of_the_environment() -> None:
    env = KeepElements(gymnasium.make("CartPole-v1"), [0, 2])
    whole = gymnasium.make("CartPole-v1").reset(seed=3)[0]
    np.testing.assert_array_equal(env.reset(seed=3)[0], whole[[0, 2]])
    assert env.observation_space.shape == (2,)
    check_env(env)


@pytest.mark.parametrize("elements", [[], [4], [-1]])
def test_elements_that_are_not_there_are_refused(elements: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"KeepElements: expected elements from 0 to 3, found \["):
        KeepElements(gymnasium.make("CartPole-v1"), elements)


def test_elements_of_other_observations_are_refused() -> None:
    with pytest.raises(ConfigError, match="KeepElements: expected vector observations, found Discrete"):
        KeepElements(gymnasium.make("FrozenLake-v1"), [0])


@pytest.mark.parametrize("delay", [1, 5])
def test_the_cue_is_shown_once_and_the_answer_is_asked_for_after_the_delay(delay: int) -> None:
    env = Cue(delay)
    check_env(env)
    rewards = set()
    for seed in range(10):
        obs, _ = env.reset(seed=seed)
        cue = obs[0]
        assert abs(cue) == 1
        steps: list[tuple[Any, ...]] = []
        while not (steps and steps[-1][2]):
            steps.append(env.step(np.int64(1)))
        assert [bool(step[0][0]) for step in steps] == [False] * (delay + 1)
        assert [step[0][1] for step in steps] == [0.0] * (delay - 1) + [1.0, 0.0]
        assert [step[1] for step in steps] == [0.0] * delay + [cue]
        rewards.add(steps[-1][1])
    assert rewards == {-1.0, 1.0}


def test_a_delay_of_no_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected delay >= 1, found 0"):
        Cue(0)
