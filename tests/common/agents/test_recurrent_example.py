"""The agent with a memory among the examples fits, and needs its memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from common.data import Array
from common.envs import spec_of
from common.testing import check_agent
from examples.recurrent_agent import LstmDqn, without_velocities
from learner.views.sequences import Sequences


def positions() -> gymnasium.Env[Array, int]:
    return without_velocities(gymnasium.make("CartPole-v1"))


def agent() -> LstmDqn:
    return LstmDqn(spec_of(positions()), seed=0, epsilon=0.0, device="cpu")


def test_it_passes_the_check_of_agents() -> None:
    check_agent(LstmDqn, positions(), view=partial(Sequences, length=8, burn_in=2), steps=200)


def test_its_observations_have_no_velocities() -> None:
    whole, seen = gymnasium.make("CartPole-v1").reset(seed=3)[0], positions().reset(seed=3)[0]
    np.testing.assert_array_equal(seen, whole[[0, 2]])


def test_its_recorded_state_is_the_one_before_the_action() -> None:
    recurrent, obs = agent(), np.array([[0.1, 0.2]], np.float32)
    recurrent.begin(np.ones(1, np.bool_))
    recurrent.sample(obs)
    assert not recurrent.extras()["state"].any()
    after = recurrent.memory.read(is_train=recurrent.is_train).numpy().copy()
    recurrent.sample(obs)
    np.testing.assert_array_equal(recurrent.extras()["state"], after)


def test_it_has_fewer_than_120_lines() -> None:
    assert len(Path("examples/recurrent_agent.py").read_text().splitlines()) < 120


@pytest.mark.parametrize(
    ("terminated", "mask", "targets"),
    [
        ([False] * 3, [True] * 3, [1 + 0.5 * (1 + 0.5 * (1 + 0.5 * 8)), 1 + 0.5 * (1 + 0.5 * 8), 1 + 0.5 * 8]),
        ([False, True, False], [True, True, False], [1 + 0.5 * 1, 1.0]),
        ([False, False, False], [True, True, False], [1 + 0.5 * (1 + 0.5 * 6), 1 + 0.5 * 6]),
    ],
)
def test_its_targets_follow_the_rewards_to_the_end_of_the_sequence_or_episode(
    terminated: list[bool], mask: list[bool], targets: list[float]
) -> None:
    recurrent = agent()
    recurrent.gamma = 0.5
    columns = {"reward": [1.0, 1.0, 1.0], "terminated": terminated, "mask": mask}
    batch = {name: torch.tensor([values]) for name, values in columns.items()}
    found = recurrent._target(batch, torch.tensor([[4.0, 6.0, 8.0]]))
    assert found[0, : len(targets)].tolist() == targets
