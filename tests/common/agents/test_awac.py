from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from common.agents.awac import AWAC
from common.interfaces import EnvSpec
from tests.common.agents.parts import fix_outputs, holding

SPEC = EnvSpec(Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32))
ZERO = np.zeros(2, np.float32)


def make(**params: Any) -> AWAC:
    """Critics that value an action by itself: ``Q(s, a) = a``."""
    defaults: dict[str, Any] = {"units": (), "batch_size": 8, "lr": 1e-9}
    agent = AWAC(SPEC, seed=0, **(defaults | params))
    for critics in (agent.critics, agent.critics_tgt):
        for net in critics.nets:
            fix_outputs(net, 0.0)
            with torch.no_grad():
                next(net.parameters())[0, -1] = 1.0
    fix_outputs(agent.actor.mean, 0.5)
    return agent


def batch(*actions: float) -> dict[str, torch.Tensor]:
    return {"obs": torch.zeros(len(actions), 2), "action": torch.tensor(actions)[:, None]}


def test_the_advantage_is_over_the_likeliest_action_of_the_policy() -> None:
    found = make()._advantage(**batch(0.9, -0.9))
    assert found.tolist() == pytest.approx([0.9 - math.tanh(0.5), -0.9 - math.tanh(0.5)])


def test_the_next_value_is_that_of_the_policys_own_draws_by_the_least_target_critic() -> None:
    agent = make(max_lstd=-2.0)
    fix_outputs(agent.critics_tgt.nets[0], 7.0)
    found = agent._next_value(torch.zeros(5000, 2))
    assert found.mean().item() == pytest.approx(math.tanh(0.5), abs=0.01)
    assert found.std().item() == pytest.approx(math.exp(-2.0), rel=0.05)


@pytest.mark.parametrize("softmax", [False, True])
def test_the_actors_loss_weighs_each_action_by_its_advantage(softmax: bool) -> None:
    agent = make(inv_lambda=2.0, **{"adv_softmax": True} if softmax else {"exp_adv_max": 1.5})
    actions, mean = (0.9, 0.1, -0.9), math.tanh(0.5)
    raw = [math.exp(2.0 * (a - mean)) for a in actions]
    weights = [w / (sum(raw) / 3) for w in raw] if softmax else [min(w, 1.5) for w in raw]
    log_probs = [-0.5 * (a - mean) ** 2 - 0.5 * math.log(2 * math.pi) for a in actions]
    record = agent._improve_actor(batch(*actions))
    assert float(record["loss_actor"]) == pytest.approx(-sum(map(math.prod, zip(weights, log_probs, strict=True))) / 3)
    assert float(record["log_prob"]) == pytest.approx(sum(log_probs) / 3)
    assert float(record["adv_mean"]) == pytest.approx(sum(actions) / 3 - mean)


def test_the_policy_is_drawn_to_the_better_of_two_actions() -> None:
    agent = make(lr=0.01)
    fix_outputs(agent.actor.mean, 0.0)
    for _ in range(300):
        agent._improve_actor(batch(0.6, -0.6))
    agent.eval()
    assert agent.sample(ZERO[None]).item() > 0.4


def test_it_records_what_the_page_describes() -> None:
    record = make().opt(holding([(ZERO, (0.5,), 1.0, ZERO, False, False)], np.float32))
    assert record is not None
    assert set(record) == {"loss_critic", "q_mean", "loss_actor", "adv_mean", "log_prob"}
    assert all(math.isfinite(value) for value in record.values())
