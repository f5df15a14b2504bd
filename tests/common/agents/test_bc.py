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
from crossborder.testing import ItemMemory
from tests.common.agents.parts import WeightedMemory, copies, holding, items_of, model_of, same

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


def test_the_weight_of_a_row_multiplies_its_loss() -> None:
    """With one row, at weight 1 and at weight 0.25."""
    items = items_of([(np.zeros(2, np.float32), 5, 0.0, np.zeros(2, np.float32), True, False)], np.int64)
    losses = []
    for weight in (1.0, 0.25):
        record = make(CHOICES, batch_size=1).opt(WeightedMemory(items, [weight]))
        assert record is not None
        losses.append(float(record["loss"]))
    assert losses[1] == pytest.approx(0.25 * losses[0])


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


# Normalised observations.


def far_away(obs: Array) -> Array:
    """The same observations in units of another size, around another place."""
    return obs * np.float32(1e-3) + np.array([50, -7], np.float32)


def test_observations_in_odd_units_are_learnt_from_as_well_once_they_are_normalised() -> None:
    zero = np.zeros(2, np.float32)
    rows = [
        (obs, action, math.nan, zero, True, False)
        for obs, action in zip(far_away(observations()), quadrant(observations()), strict=True)
    ]
    shares = {}
    for normalize in (False, True):
        agent, memory = make(CHOICES, normalize_observations=normalize), holding(rows)
        for _ in range(300):
            agent.opt(memory)
        shares[normalize] = (agent.sample(far_away(observations())) == quadrant(observations())).mean()
    assert shares[True] > 0.9 > shares[False]


@pytest.mark.parametrize("spec", [CHOICES, LEVERS])
def test_the_statistics_travel_with_the_model_and_only_the_learner_changes_them(spec: EnvSpec) -> None:
    memory = shown(np.zeros(256, np.int64) + 5 if spec is CHOICES else np.zeros((256, 2), np.float32))
    learner, actor = (make(spec, seed=seed, normalize_observations=True, update="eager") for seed in range(2))
    for _ in range(3):
        learner.opt(memory)
    model = model_of(learner, 3)
    actor.sync_model(model)
    obs = 100 * observations()
    for is_train in (True, False):
        (actor.train if is_train else actor.eval)()
        actor.sample(obs)
    np.testing.assert_array_equal(actor.sample(obs), learner.sample(obs))
    np.testing.assert_array_equal(actor.policy()(torch.from_numpy(obs)).detach(), learner.sample(obs))
    kept = {name: tensor.numpy() for name, tensor in actor.model_info().items()}
    assert kept["normalizer.count"] == 3 * 64
    for name, value in model.params.items():
        np.testing.assert_array_equal(kept[name], value)


def test_without_normalisation_the_model_and_the_checkpoint_have_the_names_of_release_0_1() -> None:
    agent = make(CHOICES)
    assert not any("normalizer" in name for name in (*agent.model_info(), *agent.training_state().tensors))


def test_a_checkpoint_without_statistics_does_not_fit_an_agent_that_normalises() -> None:
    with pytest.raises(CheckpointError, match="the saved network does not fit this one"):
        make(CHOICES, normalize_observations=True).load_training_state(make(CHOICES).training_state())
