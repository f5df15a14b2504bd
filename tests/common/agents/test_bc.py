from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, Text

from common.agents.bc import BC
from common.data import Array
from common.errors import CheckpointError, ConfigError
from common.interfaces import EnvSpec
from common.testing import ItemMemory
from tests.common.agents.parts import copies, holding, same

OBS = Box(-1, 1, (2,), np.float32)
CHOICES = EnvSpec(OBS, Discrete(3, start=5))
LEVERS = EnvSpec(OBS, Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32)))


def make(spec: EnvSpec, *, seed: int = 0, **params: Any) -> BC:
    defaults: dict[str, Any] = {"units": (32,), "batch_size": 64, "lr": 0.01}
    return BC(spec, seed=seed, **(defaults | params))


def observations(n: int = 256) -> Array:
    return np.random.default_rng(1).uniform(-1, 1, (n, 2)).astype(np.float32)


def shown(actions: Array) -> ItemMemory:
    """A memory of ``actions`` at ``observations``; rewards and what follows are of no use to an imitator."""
    zero = np.zeros(2, np.float32)
    rows = [(obs, action, math.nan, zero, True, False) for obs, action in zip(observations(), actions, strict=True)]
    return holding(rows, actions.dtype.type)


def quadrant(obs: Array) -> Array:
    return 5 + (obs[:, 0] > 0).astype(np.int64) + (obs[:, 1] > 0)


def lean(obs: Array) -> Array:
    return np.array([0, 5], np.float32) + np.array([1.6, 4], np.float32) * obs


@pytest.mark.parametrize(("spec", "expert", "allowed"), [(CHOICES, quadrant, 0.1), (LEVERS, lean, 0.3)])
def test_it_learns_what_an_expert_does(spec: EnvSpec, expert: Any, allowed: float) -> None:
    agent, memory = make(spec), shown(expert(observations()))
    for _ in range(400):
        agent.opt(memory)
    agent.eval()
    assert abs(agent.sample(observations()) - expert(observations())).mean() < allowed


def test_in_train_mode_its_actions_are_random_by_the_policy_it_has_learnt() -> None:
    """Two experts, one twice as eager as the other; after some steps the draws have their shares."""
    agent = make(CHOICES)
    memory = shown(np.resize(np.array([5, 5, 7]), 256))
    for _ in range(300):
        agent.opt(memory)
    agent.train()
    drawn = np.concatenate([agent.sample(observations()) for _ in range(40)])
    assert (drawn == 5).mean() == pytest.approx(2 / 3, abs=0.1)
    assert (drawn == 6).mean() < 0.05


def test_the_loss_is_minus_the_mean_log_probability() -> None:
    agent = make(CHOICES, batch_size=1, lr=1e-9)
    with torch.no_grad():
        for parameter in agent.imitator.parameters():
            parameter.zero_()
    record = agent.opt(shown(np.full(256, 6)))
    assert record is not None
    assert {key: float(value) for key, value in record.items()} == {"loss": pytest.approx(math.log(3))}


@pytest.mark.parametrize("spec", [CHOICES, LEVERS])
def test_an_empty_memory_changes_nothing(spec: EnvSpec) -> None:
    agent = make(spec)
    before = copies(agent.imitator)
    assert agent.opt(holding([])) is None
    assert same(copies(agent.imitator), before)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (EnvSpec(Text(4), Discrete(3)), "expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"),
        (EnvSpec(OBS, Box(-np.inf, np.inf, (2,))), r"BC: .*finite bounds, low below high"),
        (EnvSpec(OBS, MultiBinary(4)), r"BC: expected a Discrete or MultiDiscrete action space, found MultiBinary"),
    ],
)
def test_spaces_it_cannot_act_in_are_refused(spec: EnvSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(spec)


def test_the_parameters_of_another_kind_of_policy_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"^BC: the saved network does not fit"):
        make(CHOICES).load_params(make(LEVERS).save_params())
