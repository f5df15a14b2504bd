"""Replayed actions are the eager ones, bit for bit."""

from __future__ import annotations

import logging
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from common.agents.machinery.inference import Inference
from common.data import Array, Model, ModelVersion
from common.errors import PluginError
from common.interfaces import Agent, EnvSpec, acting_for_lanes
from tests.common.agents.machinery.test_update import KINDS

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", KINDS)
def test_replayed_actions_are_the_eager_ones_bit_for_bit_also_after_another_model(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, actions, space = KINDS[name]
    spec = EnvSpec(space, actions)
    replayed, eager = (make(spec=spec, seed=0, epsilon=0.5, update=update) for update in ("captured", "eager"))
    other = make(spec=spec, seed=1)
    space.seed(0)
    model = Model(ModelVersion(1, 5), {name: value.numpy().copy() for name, value in other.model_info().items()})
    for _ in range(2):
        for n in (1, 8, 1, 8):
            obs = np.stack([space.sample() for _ in range(n)])
            for switch in (Agent.train, Agent.eval):
                for agent in (replayed, eager):
                    switch(agent)
                    agent.begin(np.zeros(n, bool))
                np.testing.assert_array_equal(replayed.sample(obs), eager.sample(obs), strict=True)
        for agent in (replayed, eager):
            agent.sync_model(model)
    assert not caplog.records, "they were replayed"


@pytest.mark.parametrize("name", KINDS)
def test_replayed_actions_for_some_lanes_are_the_eager_ones_bit_for_bit(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, actions, space = KINDS[name]
    spec = EnvSpec(space, actions)
    replayed, eager = (
        acting_for_lanes(make(spec=spec, seed=0, epsilon=0.5, update=update)) for update in ("captured", "eager")
    )
    space.seed(0)
    for switch in (Agent.train, Agent.eval):
        for agent in (replayed, eager):
            switch(cast("Agent", agent))
        for lanes in (np.array([4]), np.array([2, 4, 0]), np.array([0, 1, 2, 7]), np.array([7, 4, 2])):
            obs = np.stack([space.sample() for _ in lanes])
            for agent in (replayed, eager):
                agent.begin(lanes == 7, lanes)
            np.testing.assert_array_equal(replayed.sample(obs, lanes), eager.sample(obs, lanes), strict=True)
    assert not caplog.records, "they were replayed"


def test_any_number_of_lanes_has_one_of_a_few_traces() -> None:
    rows: list[int] = []

    def double(obs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        rows.append(len(obs))
        return 2 * obs + noise

    act = Inference(double, CPU, captured=True, noise=lambda lanes: lanes[:, None].astype(np.float32))
    for k in [*range(1, 18), *range(17, 0, -1)]:
        obs, lanes = np.random.default_rng(k).random((k, 1), np.float32), np.arange(k)[::-1]
        np.testing.assert_array_equal(act(obs, lanes), 2 * obs + lanes[:, None].astype(np.float32))
    assert rows == [1, 2, 4, 8, 16, 32]


def test_observations_of_another_number_of_lanes_are_refused() -> None:
    with pytest.raises(PluginError, match="expected observations for 3 lanes, one row each, found 2 rows"):
        Inference(nn.Identity(), CPU)(np.zeros((2, 1), np.float32), np.arange(3))


def test_actions_follow_from_the_parameters_loaded_last() -> None:
    net = nn.Linear(1, 1, bias=False)
    act = Inference(net, CPU, captured=True)
    for weight in (1.0, 2.0, 3.0):
        net.load_state_dict({"weight": torch.tensor([[weight]])})
        assert act(np.ones((2, 1), np.float32)).tolist() == [[weight], [weight]]


@pytest.mark.parametrize("captured", [True, False])
def test_actions_follow_from_what_an_array_holds_at_the_call(*, captured: bool) -> None:
    act = Inference(lambda obs: 2 * obs, CPU, captured=captured)
    lanes, other = np.zeros((2, 1), np.float32), np.full((2, 1), 5, np.float32)
    for value in (1.0, 2.0, 3.0):
        lanes[:] = value
        assert act(lanes).tolist() == [[2 * value], [2 * value]]
        assert act(other).tolist() == [[10], [10]]
        assert act(lanes[:1]).tolist() == [[2 * value]]


def test_later_actions_do_not_overwrite_earlier_ones() -> None:
    act = Inference(nn.Identity(), CPU, captured=True)
    kept: list[Array] = [act(np.full((2, 1), value, np.float32)) for value in (1, 2, 3)]
    assert [array.tolist() for array in kept] == [[[value]] * 2 for value in (1, 2, 3)]


def test_actions_that_cannot_be_captured_stay_eager_and_the_log_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    act = Inference(lambda obs: torch.tensor(1.0 if obs.sum() > 0 else -1.0), CPU, captured=True)
    with caplog.at_level(logging.WARNING):
        found = [float(act(np.full(n, sign, np.float32))) for sign in (1.0, -1.0, 1.0) for n in (2, 3)]
    assert found == [1, 1, -1, -1, 1, 1]
    assert [record.getMessage() for record in caplog.records] == [
        "actions are computed eagerly, as they cannot be replayed:"
    ]
