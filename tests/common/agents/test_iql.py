from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from common.agents.iql import IQL, IQLConfig
from common.data import Array
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.settings import validate
from crossborder.testing import ItemMemory
from tests.common.agents.parts import copies, fix_outputs, floats, holding, same

SPEC = EnvSpec(Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32))
ZERO = np.zeros(2, np.float32)


def make(**params: Any) -> IQL:
    defaults: dict[str, Any] = {"units": (), "batch_size": 8, "lr": 0.01}
    return IQL(SPEC, seed=0, **(defaults | params))


def memory(terminated: bool = False, **more: Array) -> ItemMemory:
    return holding([(ZERO, (0.5,), 1.0, ZERO, terminated, False)], np.float32, **more)


@pytest.mark.parametrize(("tau", "value"), [(0.5, 0.0), (0.9, 0.8)])
def test_the_value_learns_the_expectile_of_the_least_target_critic_over_the_data(tau: float, value: float) -> None:
    """Of -1 and 1, equally often: ``tau (1 - v) = (1 - tau) (1 + v)``, so ``v = 2 tau - 1``."""
    agent = make(tau_iql=tau)
    for net, bias in zip(agent.critics_tgt.nets, (0.0, 50.0), strict=True):
        fix_outputs(net, bias)
        with torch.no_grad():
            next(net.parameters())[0, -1] = 1.0
    for _ in range(500):
        agent._improve_value({"obs": torch.zeros(2, 2), "action": torch.tensor([[1.0], [-1.0]])})
    assert agent.value(torch.zeros(1, 2)).item() == pytest.approx(value, abs=0.02)


@pytest.mark.parametrize(("terminated", "target"), [(False, 1 + 0.5 * 4), (True, 1.0)])
def test_the_critics_bootstrap_from_the_value_network(terminated: bool, target: float) -> None:
    agent = make(discount_factor=0.5, lr=1e-9)
    fix_outputs(agent.value, 4.0)
    for net in agent.critics.nets:
        fix_outputs(net, 1.0)
    assert floats(agent.opt(memory(terminated)))["loss_critic"] == pytest.approx((1 - target) ** 2, rel=1e-5)


def test_a_discount_column_takes_the_place_of_the_discount_factor() -> None:
    agent = make(discount_factor=0.5, lr=1e-9)
    fix_outputs(agent.value, 4.0)
    for net in agent.critics.nets:
        fix_outputs(net, 1.0)
    record = floats(agent.opt(memory(discount=np.array([0.25], np.float32))))
    assert record["loss_critic"] == pytest.approx((1 - 2) ** 2, rel=1e-5)


def test_the_critics_never_ask_the_policy() -> None:
    """Whatever the policy would do, values and critics learn the same from the same data."""
    agents = [make(update="eager"), make(update="eager")]
    fix_outputs(agents[1].actor.mean, 3.0)
    for agent in agents:
        for _ in range(5):
            agent.opt(memory())
    for name in ("critics", "critics_tgt", "value"):
        assert same(copies(agents[0].nets[name]), copies(agents[1].nets[name])), name


def test_the_weights_of_items_scale_the_losses_of_value_and_policy() -> None:
    batch = {"obs": torch.zeros(2, 2), "action": torch.tensor([[1.0], [-1.0]])}
    losses = [
        {name: float(found[name]) for name in ("loss_value", "loss_actor")}
        for weight in ({}, {"weight": torch.tensor([0.5, 0.5])})
        for agent in [make()]
        for found in [agent._improve_actor(batch | weight) | agent._improve_value(batch | weight)]
    ]
    assert losses[1] == pytest.approx({name: loss / 2 for name, loss in losses[0].items()}, rel=1e-4)


def test_losses_and_means_are_those_of_the_slow_formulas() -> None:
    """arXiv:2110.06169, 5 and 7: an expectile of the advantages, and log-likelihoods weighted by their exponentials."""
    agent = make(tau_iql=0.7, inv_lambda=2.0, exp_adv_max=1.5, lr=1e-9)
    for net in agent.critics_tgt.nets:
        fix_outputs(net, 0.0)
        with torch.no_grad():
            next(net.parameters())[0, -1] = 1.0  # Q(s, a) = a
    fix_outputs(agent.value, 0.25)
    fix_outputs(agent.actor.mean, 0.5)
    advantages, mean = (0.75, -1.25), math.tanh(0.5)
    weights = [min(math.exp(2.0 * advantage), 1.5) for advantage in advantages]
    log_probs = [-0.5 * (action - mean) ** 2 - 0.5 * math.log(2 * math.pi) for action in (1.0, -1.0)]
    batch = {"obs": torch.zeros(2, 2), "action": torch.tensor([[1.0], [-1.0]])}
    found = agent._improve_value(batch) | agent._improve_actor(batch)
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        {
            "loss_value": (0.7 * 0.75**2 + 0.3 * 1.25**2) / 2,
            "loss_actor": -(weights[0] * log_probs[0] + weights[1] * log_probs[1]) / 2,
            "adv_mean": sum(advantages) / 2,
            "log_prob": sum(log_probs) / 2,
        },
        rel=1e-5,
    )


def test_the_values_loss_changes_no_critic() -> None:
    agent = make()
    before = copies(agent.critics_tgt)
    agent._improve_value({"obs": torch.zeros(2, 2), "action": torch.ones(2, 1)})
    assert same(copies(agent.critics_tgt), before)
    assert all(parameter.grad is None for parameter in agent.critics_tgt.parameters())


def test_it_records_what_the_page_describes() -> None:
    record = floats(make().opt(memory()))
    assert set(record) == {"loss_value", "loss_critic", "q_mean", "loss_actor", "adv_mean", "log_prob"}
    assert all(math.isfinite(value) for value in record.values())


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_an_expectile_must_lie_inside(tau: float) -> None:
    with pytest.raises(ConfigError, match="tau_iql"):
        validate(IQLConfig, {"tau_iql": tau}, "agent.params")
