"""C51; what it shares with the other agents of action values is shown in test_q_agent.py and test_dqn.py."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from common.agents.c51 import C51, C51Config, CategoricalReturns
from common.data import Array
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.settings import validate
from tests.common.agents.parts import CHAIN, FIRST, SECOND, Row, WeightedMemory, holding, items_of

SPEC = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
SMALL: dict[str, Any] = {"units": (16,), "v_min": -1.0, "v_max": 2.0, "n_atoms": 31}


def make(**params: Any) -> C51:
    return C51(SPEC, seed=0, **(SMALL | params))


@torch.no_grad()
def fix(net: CategoricalReturns, *shares: list[float]) -> None:
    """Give each action these probabilities of the atoms, whatever is observed."""
    head = [module for module in net.modules() if isinstance(module, torch.nn.Linear)][-1]
    head.weight.zero_()
    head.bias.copy_(torch.tensor(shares).log().flatten())


def probabilities(agent: C51, obs: Array) -> torch.Tensor:
    with torch.inference_mode():
        return agent.qnet.outputs(torch.from_numpy(obs[None])).softmax(dim=2)[0]


@pytest.mark.parametrize(
    ("terminated", "double_dqn", "expected"),
    [
        # Returns are 1 + 0.5 * (0, 1, 2) = 1, 1.5, 2: half of what lies at 1.5 goes to 1, half to 2.
        (False, True, [0.0, 0.5 + 0.2, 0.2 + 0.1]),  # Online prefers action 0, of target shares 0.5, 0.4, 0.1.
        (False, False, [0.0, 0.1 + 0.1, 0.1 + 0.7]),  # The target prefers action 1, of shares 0.1, 0.2, 0.7.
        (True, True, [0.0, 1.0, 0.0]),
    ],
)
def test_the_target_is_the_next_distribution_projected_onto_the_atoms(
    terminated: bool, double_dqn: bool, expected: list[float]
) -> None:
    agent = make(units=(), v_min=0.0, v_max=2.0, n_atoms=3, discount_factor=0.5, double_dqn=double_dqn)
    fix(agent.qnet, [0.1, 0.1, 0.8], [0.8, 0.1, 0.1])
    fix(agent.qnet_tgt, [0.5, 0.4, 0.1], [0.1, 0.2, 0.7])
    memory = WeightedMemory(items_of([(FIRST, 1, 1.0, SECOND, terminated, False)]), [1.0])
    record = agent.opt(memory)
    assert record is not None
    loss = -sum(share * np.log(predicted) for share, predicted in zip(expected, [0.8, 0.1, 0.1], strict=True))
    assert float(record["loss"]) == pytest.approx(loss, rel=1e-4)
    target = expected[1] + 2 * expected[2]
    assert float(record["tgt_mean"]) == pytest.approx(target, rel=1e-4)
    assert float(record["pred_mean"]) == pytest.approx(0.3, rel=1e-4)
    assert memory.told[0][1] == pytest.approx([abs(target - 0.3)], rel=1e-4)


def test_weights_scale_the_loss() -> None:
    rows = [(FIRST, 0, 1.0, FIRST, True, False), (FIRST, 1, 1.0, FIRST, True, False)]
    losses = []
    for weight in (1.0, 0.5):
        record = make().opt(WeightedMemory(items_of(rows), [weight] * 2))
        assert record is not None
        losses.append(float(record["loss"]))
    assert losses[1] == pytest.approx(losses[0] / 2)


def test_it_learns_the_values_of_two_states() -> None:
    agent = make(lr=0.01, batch_size=16, discount_factor=0.9, soft_update_interval=10)
    memory = holding(CHAIN)
    for _ in range(400):
        agent.opt(memory)
    with torch.inference_mode():
        found = agent.qnet(torch.from_numpy(np.stack([FIRST, SECOND]))).numpy()
    np.testing.assert_allclose(found, [[0.9, 0.3], [1.0, 0.0]], atol=0.08)


def test_it_learns_the_whole_distribution_of_a_return() -> None:
    """Three quarters of the rewards are -1 and a quarter is 2, while a critic would learn -0.25."""
    memory = holding([(FIRST, 1, reward, FIRST, True, False) for reward in (-1.0, -1.0, -1.0, 2.0)])
    agent = make(lr=0.01, batch_size=64, n_atoms=4)
    for _ in range(300):
        agent.opt(memory)
    np.testing.assert_allclose(probabilities(agent, FIRST)[1], [0.75, 0.0, 0.0, 0.25], atol=0.05)


def test_a_discount_column_takes_the_place_of_the_discount_factor() -> None:
    agent = make(units=(), v_min=0.0, v_max=2.0, n_atoms=3, discount_factor=0.5)
    fix(agent.qnet_tgt, [1e-9, 1.0, 1e-9], [1e-9, 1.0, 1e-9])
    rows: list[Row] = [(FIRST, 1, 1.0, SECOND, False, False)]
    record = agent.opt(holding(rows, discount=np.array([0.25], np.float32)))
    assert record is not None
    assert float(record["tgt_mean"]) == pytest.approx(1.25, rel=1e-4)


def test_values_out_of_order_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"v_min \(1.0\) is not below v_max \(1.0\)"):
        validate(C51Config, {"v_min": 1.0, "v_max": 1.0})


def test_the_value_of_a_categorical_return_is_its_mean() -> None:
    logits = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]).log().flatten()[None]
    net = CategoricalReturns(nn.Identity(), -1.0, 3.0, 3, dueling=False)
    assert net.atoms.tolist() == [-1.0, 1.0, 3.0]
    torch.testing.assert_close(net(logits), torch.tensor([[1.6, -1.0]]))
