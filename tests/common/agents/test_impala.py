from __future__ import annotations

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from common.agents.impala import IMPALA
from common.data import Items
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.settings import validate
from common.spaces import to_columns
from crossborder.testing import ItemMemory, check_agent
from learner.views.sequences import Sequences
from tests.common.agents.parts import Structured, Whole, model_of

OBS = Box(-1, 1, (2,), np.float32)
CHOICES = EnvSpec(OBS, Discrete(3, start=5))
LEVERS = EnvSpec(OBS, Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32)))
SWITCHES = EnvSpec(OBS, MultiDiscrete([2, 3], start=[0, 5]))
BOTH = EnvSpec(OBS, Dict({"aim": Box(-2, 2, (2, 1), np.float32), "gear": MultiDiscrete([2, 3], start=[0, 5])}))
SMALL: dict[str, Any] = {"units": (8,), "batch_size": 4}
VIEW = partial(Sequences, length=5, period=5)


def make(spec: EnvSpec = CHOICES, *, seed: int = 0, **params: Any) -> IMPALA:
    """Eager if nothing else is asked for: capturing an update takes as long as a hundred of them."""
    return IMPALA(spec, seed=seed, **(SMALL | {"update": "eager"} | params))


def played(agent: IMPALA, rounds: int = 12, length: int = 5, reward: Any = None) -> Items:
    """Sequences that the agent plays in train mode, without an end: one for each of as many lanes as ``rounds``."""
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (rounds, length + 1, 2)).astype(np.float32)
    agent.train()
    steps: list[Items] = []
    for t in range(length):
        actions = to_columns("action", agent.sample(obs[:, t]))
        steps.append(actions | {name: column.copy() for name, column in agent.extras().items()})
    columns = {name: np.stack([step[name] for step in steps], axis=1) for name in steps[0]}
    rewards = rng.normal(size=(rounds, length)) if reward is None else reward(columns["action"])
    nowhere = np.zeros((rounds, length), np.bool_)
    return {
        "obs": obs,
        **columns,
        "reward": rewards.astype(np.float32),
        "terminated": nowhere,
        "truncated": nowhere,
        "mask": ~nowhere,
        "version": np.zeros((rounds, length), np.int64),
    }


def test_losses_and_means_are_those_of_the_paper() -> None:
    """arXiv:1802.01561, section 4.2, for sequences without corrections, ends or entropy."""
    agent = make(batch_size=3)
    items = played(agent, rounds=3)
    with torch.no_grad():
        outputs, value = agent.policy_net(torch.from_numpy(items["obs"]).flatten(0, 1))
    log_prob = outputs.log_softmax(dim=1).view(3, 6, -1).numpy()
    value = value.view(3, 6).numpy()
    target = value.copy()
    for t in range(4, -1, -1):
        target[:, t] = items["reward"][:, t] + agent.config.discount_factor * target[:, t + 1]
    taken = np.take_along_axis(log_prob[:, :5], items["action"][:, :, None] - 5, axis=2)[:, :, 0]
    record = agent.opt(Whole(items))
    assert record is not None
    assert float(record["loss_policy"]) == pytest.approx(-np.mean((target - value)[:, :5] * taken), rel=1e-3)
    assert float(record["loss_baseline"]) == pytest.approx(np.mean((target - value)[:, :5] ** 2) / 2, rel=1e-3)
    entropy = -(np.exp(log_prob) * log_prob).sum(axis=2)
    assert float(record["entropy"]) == pytest.approx(entropy[:, :5].mean(), rel=1e-4)
    assert float(record["value_mean"]) == pytest.approx(value[:, :5].mean(), rel=1e-4)


def test_the_weight_of_a_sequence_multiplies_its_losses() -> None:
    agent = make(batch_size=2)
    items = played(agent, rounds=2)
    halves = copy.deepcopy(agent).opt(Whole({**items, "weight": np.array([0.5, 0.5], np.float32)}))
    whole = agent.opt(Whole(items))
    assert whole is not None
    assert halves is not None
    for name in ("loss_policy", "loss_baseline"):
        assert float(halves[name]) == pytest.approx(0.5 * float(whole[name]), rel=1e-5)


@pytest.mark.parametrize("spec", [LEVERS, SWITCHES], ids=["Box", "MultiDiscrete"])
def test_it_fits_and_its_captured_updates_are_the_eager_ones(spec: EnvSpec) -> None:
    """With Discrete actions: test_conformance.py."""
    check_agent(partial(IMPALA, **SMALL), Structured(spec.observation_space, spec.action_space), view=VIEW, steps=150)
    assert IMPALA(spec, seed=0, **SMALL).is_captured


def test_it_learns_from_structured_observations_and_normalises_them() -> None:
    space = gymnasium.spaces.Dict({"state": OBS, "gear": Discrete(4, start=2)})
    make_agent = partial(IMPALA, **SMALL, normalize_observations=True)
    check_agent(make_agent, Structured(space, Discrete(2)), view=VIEW, steps=150)


def test_it_learns_across_episodes() -> None:
    env = Structured(OBS, Discrete(3, start=5))
    check_agent(partial(IMPALA, **SMALL), env, view=partial(Sequences, length=9, across=True), steps=150)


@pytest.mark.parametrize("spec", [CHOICES, LEVERS, SWITCHES, BOTH], ids=["Discrete", "Box", "MultiDiscrete", "Dict"])
def test_the_learner_finds_the_log_probability_that_the_actor_recorded(spec: EnvSpec) -> None:
    """So without a change of the policy every ratio is 1."""
    agent = make(spec)
    record = agent.opt(Whole(played(agent)))
    assert record is not None
    assert float(record["ratio_mean"]) == pytest.approx(1.0, abs=1e-5)


def test_a_recorded_log_probability_is_that_of_the_action(tmp_path: Path) -> None:
    agent = make()
    items = played(agent)
    outputs, _ = agent.policy_net(torch.from_numpy(items["obs"][:, 0]))
    slow = outputs.softmax(dim=1).gather(1, torch.from_numpy(items["action"][:, :1] - 5)).log()
    np.testing.assert_allclose(items["log_prob"][:, 0], slow.detach().numpy()[:, 0], rtol=1e-5)


@pytest.mark.parametrize("correction", ["vtrace", "none"])
def test_it_learns_which_action_is_rewarded(correction: str) -> None:
    agent = make(units=(32,), lr=0.01, correction=correction, discount_factor=0.0, update="captured")
    for _ in range(150):
        agent.opt(Whole(played(agent, reward=lambda action: action == 6)))
    agent.eval()
    assert (agent.sample(np.random.default_rng(1).uniform(-1, 1, (50, 2)).astype(np.float32)) == 6).all()


def test_it_learns_which_continuous_action_is_rewarded() -> None:
    agent = make(LEVERS, units=(32,), lr=0.01, discount_factor=0.0, update="captured")
    target = np.array([1.0, 3.0], np.float32)
    for _ in range(400):
        agent.opt(Whole(played(agent, reward=lambda action: -np.square((action - target) / [2, 5]).sum(axis=2))))
    agent.eval()
    found = agent.sample(np.random.default_rng(1).uniform(-1, 1, (50, 2)).astype(np.float32))
    np.testing.assert_allclose(found.mean(axis=0), target, atol=0.4)


def test_actions_of_an_older_policy_are_corrected_for() -> None:
    """Rewards favour action 5. Only by its recorded probability can one see that 5 was all but never to be taken."""
    agent = make(lr=1e-9, entropy_cost=0.0)
    items = played(agent)
    unlikely = items | {"log_prob": np.full_like(items["log_prob"], 50.0)}
    results = [agent.opt(Whole(each)) for each in (items, unlikely)]
    assert results[0] is not None
    assert results[1] is not None
    assert float(results[1]["ratio_mean"]) == pytest.approx(0.0, abs=1e-6)
    assert float(results[1]["loss_policy"]) == pytest.approx(0.0, abs=1e-6)
    assert float(results[0]["loss_policy"]) != pytest.approx(0.0, abs=1e-3)
    uncorrected = make(lr=1e-9, entropy_cost=0.0, correction="none")
    one, other = (uncorrected.opt(Whole(each)) for each in (items, unlikely))
    assert one is not None
    assert other is not None
    assert float(one["loss_policy"]) == pytest.approx(float(other["loss_policy"]))


def test_entropy_is_rewarded() -> None:
    entropies = []
    for cost in (0.0, 1.0):
        agent = make(lr=0.01, entropy_cost=cost, update="captured")
        for _ in range(60):
            record = agent.opt(Whole(played(agent, reward=lambda action: action == 6)))
        assert record is not None
        entropies.append(float(record["entropy"]))
    assert entropies[0] < 0.5
    assert 0.8 < entropies[1] < math.log(3)


def test_the_age_of_the_versions_that_acted_is_recorded() -> None:
    agent = make()
    items = played(agent)
    items["version"][:] = 3
    agent.sync_model(model_of(agent, 10))
    record = agent.opt(Whole(items))
    assert record is not None
    assert float(record["version_age"]) == 7.0


def test_transitions_are_refused_by_name() -> None:
    agent = make()
    items = {name: column[:, 0] for name, column in played(agent).items() if name != "mask"}
    with pytest.raises(ConfigError, match=r"replay\.view: IMPALA learns from sequences"):
        agent.opt(ItemMemory(items))


def test_units_beside_a_network_are_refused() -> None:
    network = {"target": "common.agents.networks:NatureCnn"}
    with pytest.raises(ConfigError, match="give units or network, not both"):
        validate(IMPALA.Config, {"network": network, "units": (8,)}, "agent.params")
