"""QR-DQN; what it shares with the other agents of action values is shown in test_q_agent.py and test_dqn.py."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from common.agents.qr_dqn import QRDQN, QuantileReturns
from common.interfaces import EnvSpec
from tests.common.agents.parts import CHAIN, FIRST, SECOND, WeightedMemory, holding, items_of

SPEC = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
SMALL: dict[str, Any] = {"units": (16,), "n_quantiles": 8}


def make(**params: Any) -> QRDQN:
    return QRDQN(SPEC, seed=0, **(SMALL | params))


@torch.no_grad()
def fix(net: QuantileReturns, *quantiles: list[float]) -> None:
    """Give each action these quantiles, whatever is observed."""
    head = [module for module in net.modules() if isinstance(module, torch.nn.Linear)][-1]
    head.weight.zero_()
    head.bias.copy_(torch.tensor(quantiles).flatten())


@pytest.mark.parametrize(
    ("terminated", "double_dqn", "target"),
    [
        (False, True, [1 + 0.5 * 2, 1 + 0.5 * 4]),  # Online picks action 0, of which the target network has 2 and 4.
        (False, False, [1 + 0.5 * 6, 1 + 0.5 * 8]),
        (True, True, [1.0, 1.0]),
    ],
)
def test_an_update_is_that_of_the_slow_formula(terminated: bool, double_dqn: bool, target: list[float]) -> None:
    agent = make(units=(), n_quantiles=2, discount_factor=0.5, double_dqn=double_dqn)
    predicted = [1.0, 3.0]
    fix(agent.qnet, [5.0, 5.0], predicted)
    fix(agent.qnet_tgt, [2.0, 4.0], [6.0, 8.0])
    memory = WeightedMemory(items_of([(FIRST, 1, 1.0, SECOND, terminated, False)]), [1.0])
    record = agent.opt(memory)
    slow = 0.0
    for level, quantile in zip((0.25, 0.75), predicted, strict=True):
        for wanted in target:
            error = wanted - quantile
            huber = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
            slow += abs(level - (error < 0)) * huber / 2
    assert record is not None
    assert float(record["loss"]) == pytest.approx(slow)
    assert float(record["pred_mean"]) == pytest.approx(sum(predicted) / 2)
    assert float(record["tgt_mean"]) == pytest.approx(sum(target) / 2)
    assert memory.told[0][1] == pytest.approx([abs(sum(target) / 2 - 2.0)])


def test_it_learns_the_values_of_two_states() -> None:
    agent = make(lr=0.01, batch_size=16, discount_factor=0.9, soft_update_interval=10, double_dqn=False)
    memory = holding(CHAIN)
    for _ in range(500):
        agent.opt(memory)
    with torch.inference_mode():
        found = agent.qnet(torch.from_numpy(np.stack([FIRST, SECOND]))).numpy()
    np.testing.assert_allclose(found, [[0.9, 0.3], [1.0, 0.0]], atol=0.08)


def test_it_learns_the_whole_distribution_of_a_return() -> None:
    """Rewards are even from -5 to 5: the quantile at level tau is 10 tau - 5, while a critic would learn 0."""
    rewards = np.linspace(-5, 5, 200)
    memory = holding([(FIRST, 1, float(reward), FIRST, True, False) for reward in rewards])
    agent = make(lr=0.02, batch_size=64, kappa=0.1)
    for _ in range(500):
        agent.opt(memory)
    with torch.inference_mode():
        found = agent.qnet.outputs(torch.from_numpy(FIRST[None]))[0, 1]
    np.testing.assert_allclose(found, 10 * (np.arange(8) + 0.5) / 8 - 5, atol=0.8)


def test_the_value_of_quantiles_is_their_mean() -> None:
    net = QuantileReturns(nn.Identity(), 2, dueling=False)
    assert net(torch.tensor([[1.0, 3.0, 10.0, 20.0]])).tolist() == [[2.0, 15.0]]


def test_the_outputs_of_dueling_returns_are_those_of_the_value_and_of_each_advantage() -> None:
    net = QuantileReturns(nn.Identity(), 2, dueling=True)
    outputs = net.outputs(torch.tensor([[10.0, 20.0, 1.0, 1.0, 3.0, 5.0]]))
    assert outputs.tolist() == [[[9.0, 18.0], [11.0, 22.0]]]
