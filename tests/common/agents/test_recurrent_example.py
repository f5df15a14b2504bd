"""The agent with a memory among the examples; that it fits is shown in test_conformance.py."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np

from common.data import Array
from common.envs.memory_tasks import KeepElements
from common.lanes.building import spec_of
from examples.recurrent_agent import LstmDqn


def positions() -> gymnasium.Env[Array, int]:
    return KeepElements(gymnasium.make("CartPole-v1"), [0, 2])


def agent() -> LstmDqn:
    return LstmDqn(spec_of(positions()), seed=0, epsilon=0.0, device="cpu")


def test_its_recorded_state_is_the_one_before_the_action() -> None:
    recurrent, obs = agent(), np.array([[0.1, 0.2]], np.float32)
    recurrent.begin(np.ones(1, np.bool_))
    recurrent.sample(obs)
    assert not recurrent.extras()["state"].any()
    after = recurrent.memory.read(is_train=recurrent.is_train).numpy().copy()
    recurrent.sample(obs)
    np.testing.assert_array_equal(recurrent.extras()["state"], after)


def test_it_has_fewer_than_100_lines() -> None:
    assert len(Path("examples/recurrent_agent.py").read_text().splitlines()) < 100
