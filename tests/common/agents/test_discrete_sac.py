from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from common.agents.discrete_sac import DiscreteSAC
from common.errors import ConfigError
from common.interfaces import EnvSpec
from tests.common.agents.parts import Row, WeightedMemory, copies, fix_outputs, floats, holding, items_of, same

OBS = spaces.Box(-1, 1, (2,), np.float32)
SPEC = EnvSpec(OBS, spaces.Discrete(3))
ZERO = np.zeros(2, np.float32)


def make(spec: EnvSpec = SPEC, **params: Any) -> DiscreteSAC:
    defaults: dict[str, Any] = {"units": (8,), "batch_size": 16, "lr": 0.01}
    return DiscreteSAC(spec, seed=0, **(defaults | params))


def row(reward: float = 1.0, *, terminated: bool = False, truncated: bool = False, action: int = 0) -> Row:
    return ZERO, action, reward, ZERO, terminated, truncated


def test_it_learns_the_best_action_of_a_bandit() -> None:
    rows = [row(reward, terminated=True, action=action) for action, reward in enumerate((0.0, 1.0, 0.5))]
    agent = make(ent_coef=0.05, auto_ent_coef=False)
    for _ in range(200):
        record = floats(agent.opt(holding(rows)))
    agent.eval()
    assert agent.sample(ZERO[None]).tolist() == [1]
    odds = np.exp(np.array([0.0, 1.0, 0.5]) / 0.05)
    best = odds / odds.sum()
    assert record["entropy"] == pytest.approx(-(best * np.log(best)).sum(), abs=0.05)


@pytest.mark.parametrize(("terminated", "truncated"), [(False, False), (False, True), (True, False)])
def test_the_target_is_the_least_critics_soft_value_and_bootstraps_unless_terminated(
    terminated: bool, truncated: bool
) -> None:
    agent = make(units=(), discount_factor=0.5, ent_coef=2.0, auto_ent_coef=False)
    logits, values = [0.0, 1.0, -1.0], ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
    fix_outputs(agent.actor.logits, *logits)
    for online, behind, outputs in zip(agent.critics.nets, agent.critics_tgt.nets, values, strict=True):
        fix_outputs(online, 0.0, 0.0, 0.0)
        fix_outputs(behind, *outputs)
    odds = [math.exp(logit) for logit in logits]
    policy = [each / sum(odds) for each in odds]
    value = sum(p * (min(a, b) - 2.0 * math.log(p)) for p, a, b in zip(policy, *values, strict=True))
    target = 1.0 + (0.0 if terminated else 0.5 * value)
    record = floats(agent.opt(holding([row(terminated=terminated, truncated=truncated)])))
    assert record["loss_critic"] == pytest.approx(target**2, rel=1e-5)
    assert record["entropy"] == pytest.approx(-sum(p * math.log(p) for p in policy), rel=1e-5)


def test_the_actors_loss_is_minus_the_soft_value_and_the_mean_value_is_that_of_the_action_taken() -> None:
    """arXiv:1910.07207, 12: ``sum_a pi(a|s) (alpha log pi(a|s) - min_i Q_i(s, a))``."""
    agent = make(units=(), ent_coef=2.0, lr=1e-9)  # The critics hardly change before the actor learns.
    policy, values = (0.2, 0.7, 0.1), ([1.0, 2.0, 3.0], [6.0, 4.0, 0.0])
    fix_outputs(agent.actor.logits, *map(math.log, policy))
    for net, outputs in zip(agent.critics.nets, values, strict=True):
        fix_outputs(net, *outputs)
    record = floats(agent.opt(holding([row(action=1)])))
    expected = sum(p * (2.0 * math.log(p) - min(a, b)) for p, a, b in zip(policy, *values, strict=True))
    assert record["loss_actor"] == pytest.approx(expected, rel=1e-5)
    assert record["q_mean"] == pytest.approx((2.0 + 4.0) / 2)
    assert record["ent_coef"] == pytest.approx(2.0)


def test_a_discount_column_takes_the_place_of_the_discount_factor() -> None:
    agent = make(units=(), ent_coef=1e-9, auto_ent_coef=False, discount_factor=0.5)
    for online, behind in zip(agent.critics.nets, agent.critics_tgt.nets, strict=True):
        fix_outputs(online, 1.0, 1.0, 1.0)
        fix_outputs(behind, 4.0, 4.0, 4.0)
    record = floats(agent.opt(holding([row()], discount=np.array([0.25], np.float32))))
    assert record["loss_critic"] == pytest.approx(1.0, rel=1e-5)


def test_weights_scale_the_loss_of_each_item_and_the_mean_error_is_reported() -> None:
    agent = make(units=())
    for net, value in zip(agent.critics.nets, (1.0, 4.0), strict=True):
        fix_outputs(net, value, value, value)
    memory = WeightedMemory(items_of([row(2.0, terminated=True), row(5.0, terminated=True)]), [1.0, 0.5])
    record = floats(agent.opt(memory))
    assert record["loss_critic"] == pytest.approx((1.0 + 0.5 * 16 + 4.0 + 0.5 * 1) / 4)
    assert memory.told == [([70, 71], [1.5, 2.5])]


@pytest.mark.parametrize(("share", "rises"), [(0.9, True), (0.1, False)])
def test_the_entropy_coefficient_rises_while_the_entropy_is_below_its_target(share: float, rises: bool) -> None:
    agent = make(units=(), target_entropy=share, ent_coef=0.5)
    fix_outputs(agent.actor.logits, 0.0, 1.5, 1.5)  # Two of three actions, an entropy of 0.85 of the greatest.
    before = agent.ent_coef().item()
    agent.opt(holding([row()]))
    assert (agent.ent_coef().item() > before) is rises


def test_targets_follow_by_tau_and_the_actors_loss_changes_no_critic() -> None:
    agent = make(tau=0.25)
    before = copies(agent.critics_tgt)
    agent.opt(holding([row()]))
    slow = [0.75 * old + 0.25 * new for old, new in zip(before, copies(agent.critics), strict=True)]
    torch.testing.assert_close(copies(agent.critics_tgt), slow)
    critics = copies(agent.critics)
    agent._improve_actor({"obs": torch.zeros(4, 2)})
    assert same(copies(agent.critics), critics)


def test_it_explores_with_the_probabilities_of_its_policy_and_is_greedy_otherwise() -> None:
    agent = make(units=())
    fix_outputs(agent.actor.logits, 0.0, math.log(2.0), math.log(5.0))
    obs = np.zeros((16_000, 2), np.float32)
    agent.train()
    shares = np.bincount(agent.sample(obs), minlength=3) / len(obs)
    np.testing.assert_allclose(shares, [1 / 8, 2 / 8, 5 / 8], atol=0.02)
    agent.eval()
    assert set(agent.sample(obs).tolist()) == {2}


def test_several_components_of_an_action_are_numbered_jointly() -> None:
    agent = make(EnvSpec(OBS, spaces.MultiDiscrete([2, 3])))
    agent.train()
    actions = agent.sample(np.zeros((200, 2), np.float32))
    assert actions.shape == (200, 2)
    assert set(map(tuple, actions.tolist())) == {(a, b) for a in range(2) for b in range(3)}
    obs = np.zeros((4, 2), np.float32)
    rows = [(o, action, 1.0, o, False, False) for o, action in zip(obs, actions[:4], strict=True)]
    assert agent.opt(holding(rows)) is not None


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match="DiscreteSAC: expected a Discrete or MultiDiscrete action space"):
        make(EnvSpec(OBS, OBS))


def test_units_and_a_network_are_not_given_together() -> None:
    with pytest.raises(ConfigError, match="units or network, not both"):
        make(network={"target": "common.agents.networks:NatureCnn"})


def test_pictures_go_through_a_network_for_the_actor_and_each_critic() -> None:
    pictures = EnvSpec(spaces.Box(0, 255, (1, 36, 36), np.uint8), SPEC.action_space)
    network = {"target": "common.agents.networks:NatureCnn", "params": {"hidden": 8}}
    agent = DiscreteSAC(pictures, seed=0, network=network, batch_size=4)
    assert agent.sample(np.zeros((5, 1, 36, 36), np.uint8)).shape == (5,)
    assert len(agent.critics.nets) == 2
