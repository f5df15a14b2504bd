"""IQN; what it shares with DQN (exploring, target network, models) is shown in test_dqn.py."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from common.agents.iqn import IQN, QuantileNet
from common.agents.networks.layers import Mlp
from common.agents.networks.picture_networks import NatureCnn
from common.data import Array
from common.errors import CheckpointError, ConfigError
from common.interfaces import EnvSpec
from tests.common.agents.parts import CHAIN, FIRST, SECOND, Row, WeightedMemory, copies, holding, items_of, same

SMALL: dict[str, Any] = {"units": (16,), "feature_dim": 16, "embed_dim": 16}


def make(**params: Any) -> IQN:
    spec = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
    return IQN(spec, seed=0, **(SMALL | params))


def values(agent: IQN) -> Array:
    with torch.inference_mode():
        found: Array = agent.qnet(torch.from_numpy(np.stack([FIRST, SECOND]))).numpy()
    return found


@torch.no_grad()
def fix_values(net: QuantileNet, *outputs: float) -> None:
    """Make every quantile of each action the one given, whatever is observed."""
    weight, bias = net.f[-1].parameters()
    weight.zero_()
    bias.copy_(torch.tensor(outputs))


# Learning.


def test_weights_scale_the_loss_and_the_error_of_the_mean_is_reported() -> None:
    rows = [(FIRST, 0, 2.0, FIRST, True, False), (FIRST, 1, 2.0, FIRST, True, False)]
    losses = []
    for weight in (1.0, 0.5):
        agent, memory = make(), WeightedMemory(items_of(rows), [weight] * 2)
        fix_values(agent.qnet, 1.0, 5.0)
        record = agent.opt(memory)
        assert record is not None
        losses.append(float(record["loss"]))
        assert memory.told == [([70, 71], [1.0, 3.0])]
    assert losses[1] == pytest.approx(losses[0] / 2)


def test_the_loss_is_that_of_the_paper() -> None:
    """arXiv:1806.06923, 3: over the learnt quantiles it is a sum, over those of the target a mean."""
    agent, generator = make(n_quantiles=4, n_quantiles_tgt=3, kappa=1.0), torch.Generator()
    generator.set_state(agent._generator.get_state())
    torch.rand((3, 2), generator=generator)  # The levels of the targets, which are all of one value here.
    levels = torch.rand((4, 2), generator=generator)
    fix_values(agent.qnet, 1.0, 5.0)
    rows = [(FIRST, 0, 3.0, FIRST, True, False), (FIRST, 1, 4.5, FIRST, True, False)]
    record = agent.opt(WeightedMemory(items_of(rows), [1.0] * 2))
    assert record is not None
    above, below = levels[:, 0] * (2.0 - 0.5), (1 - levels[:, 1]) * 0.5 * 0.5**2  # Errors of 2 and -0.5.
    assert float(record["loss"]) == pytest.approx(float(above.sum() + below.sum()) / 2, rel=1e-5)


def test_an_actor_computes_td_errors_by_the_only_network_it_has() -> None:
    agent = make(discount_factor=0.5)
    fix_values(agent.qnet, 1.0, 4.0)
    fix_values(agent.qnet_tgt, np.nan, np.nan)
    rows = [(FIRST, 0, 2.0, SECOND, False, False), (SECOND, 1, 2.0, FIRST, True, False)]
    np.testing.assert_allclose(agent.td_error(items_of(rows)), [2 + 0.5 * 4 - 1, 2 - 4])


def test_it_learns_the_values_of_two_states() -> None:
    agent = make(lr=5e-3, batch_size=16, discount_factor=0.9, soft_update_interval=10, double_dqn=False)
    memory = holding(CHAIN)
    for _ in range(500):
        agent.opt(memory)
    np.testing.assert_allclose(values(agent), [[0.9, 0.3], [1.0, 0.0]], atol=0.08)
    agent.eval()
    assert agent.sample(np.stack([FIRST, SECOND])).tolist() == [0, 0]


def test_it_learns_the_whole_distribution_of_a_return() -> None:
    """Rewards are even from -5 to 5: the quantile at level tau is 10 tau - 5, while a critic would learn 0."""
    rewards = np.linspace(-5, 5, 200)
    memory = holding([(FIRST, 1, float(reward), FIRST, True, False) for reward in rewards])
    agent = make(lr=5e-3, batch_size=64, n_quantiles=16, n_quantiles_tgt=4, kappa=0.1)
    for _ in range(500):
        agent.opt(memory)
    levels = torch.tensor([[0.1], [0.25], [0.5], [0.75], [0.9]])
    with torch.inference_mode():
        found = agent.qnet.quantiles(torch.from_numpy(FIRST[None]), levels)[:, 0, 1]
    np.testing.assert_allclose(found.numpy(), 10 * levels[:, 0] - 5, atol=0.8)


@pytest.mark.parametrize(
    ("terminated", "truncated", "double_dqn", "target"),
    [
        (False, False, True, 1 + 0.5 * 5),  # Online picks action 1, which the target network values at 5.
        (False, False, False, 1 + 0.5 * 10),
        (False, True, True, 1 + 0.5 * 5),
        (True, False, True, 1.0),
    ],
)
def test_the_target_bootstraps_from_the_chosen_actions_quantiles_unless_terminated(
    terminated: bool, truncated: bool, double_dqn: bool, target: float
) -> None:
    agent = make(discount_factor=0.5, double_dqn=double_dqn, n_quantiles=4)
    fix_values(agent.qnet, 1.0, 2.0)
    fix_values(agent.qnet_tgt, 10.0, 5.0)
    record = agent.opt(holding([(FIRST, 1, 1.0, SECOND, terminated, truncated)]))
    assert record is not None
    assert float(record["pred_mean"]) == pytest.approx(2.0)
    assert float(record["tgt_mean"]) == pytest.approx(target)
    assert set(record) == {"loss", "pred_mean", "tgt_mean", "grad_norm"}


def test_the_target_of_munchausen_is_that_of_the_slow_formula_and_of_the_target_network() -> None:
    agent = make(discount_factor=0.5, munchausen={"temperature": 0.5})
    fix_values(agent.qnet, 9.0, 9.0)
    fix_values(agent.qnet_tgt, 1.0, 2.0)  # Of either observation.
    record = agent.opt(holding([(FIRST, 0, 1.0, SECOND, False, False)]))
    shares = [1 / (1 + math.exp(2.0)), 1 / (1 + math.exp(-2.0))]
    bonus = 0.9 * max(0.5 * math.log(shares[0]), -1.0)
    soft = sum(share * (value - 0.5 * math.log(share)) for share, value in zip(shares, (1.0, 2.0), strict=True))
    assert record is not None
    assert float(record["tgt_mean"]) == pytest.approx(1.0 + bonus + 0.5 * soft, rel=1e-4)


def test_a_munchausen_agent_learns_which_actions_are_best() -> None:
    agent = make(lr=5e-3, batch_size=16, discount_factor=0.9, soft_update_interval=10, munchausen={"alpha": 0.5})
    memory = holding(CHAIN)
    for _ in range(400):
        agent.opt(memory)
    agent.eval()
    assert agent.sample(np.stack([FIRST, SECOND])).tolist() == [0, 0]


def test_a_discount_column_takes_the_place_of_the_discount_factor() -> None:
    agent = make(discount_factor=0.5)
    fix_values(agent.qnet_tgt, 8.0, 8.0)
    rows: list[Row] = [(FIRST, 1, 1.0, SECOND, False, False)]
    record = agent.opt(holding(rows, discount=np.array([0.25], np.float32)))
    assert record is not None
    assert float(record["tgt_mean"]) == pytest.approx(3.0)


def test_the_seed_decides_on_the_levels_that_are_drawn() -> None:
    agents = [make(update="eager"), make(update="eager")]
    for agent in agents:
        for _ in range(3):
            agent.opt(holding(CHAIN))
    first, again = (copies(agent.qnet) for agent in agents)
    assert same(first, again)


# The network.


def test_quantiles_are_those_of_the_papers_formula() -> None:
    net = QuantileNet(Mlp((3,), 4, ()), 4, 2, embed_dim=5, n_levels=3)
    obs, levels = torch.rand(2, 3), torch.rand(6, 2)
    found = net.quantiles(obs, levels)
    assert found.shape == (6, 2, 2)
    for n in range(6):
        for b in range(2):
            cosines = torch.tensor([math.cos(math.pi * i * float(levels[n, b])) for i in range(5)])
            slow = net.f(net.psi(obs[b : b + 1])[0] * net.phi(cosines))
            torch.testing.assert_close(found[n, b], slow)


def test_quantiles_of_the_value_and_of_advantages_are_joined_at_each_level() -> None:
    net = QuantileNet(Mlp((3,), 4, ()), 4, 2, embed_dim=5, n_levels=3, dueling=True)
    obs, levels = torch.rand(2, 3), torch.rand(6, 2)
    embedding = net.phi((levels[..., None] * net.frequencies).cos())
    value, *advantages = net.f(net.psi(obs) * embedding).unbind(dim=2)
    mean = (advantages[0] + advantages[1]) / 2
    slow = torch.stack([value + advantage - mean for advantage in advantages], dim=2)
    torch.testing.assert_close(net.quantiles(obs, levels), slow)


def test_an_actions_value_is_the_mean_of_its_quantiles_at_even_levels() -> None:
    net = QuantileNet(Mlp((3,), 4, ()), 4, 2, embed_dim=5, n_levels=4)
    obs, levels = torch.rand(7, 3), torch.tensor([[0.125], [0.375], [0.625], [0.875]])
    torch.testing.assert_close(net(obs), net.quantiles(obs, levels.expand(4, 7)).mean(dim=0))


# The rest.


def test_a_users_own_network_makes_the_features() -> None:
    space = gymnasium.spaces.Box(0, 255, (1, 36, 36), np.uint8)
    network = {"target": "common.agents.networks:NatureCnn", "params": {"hidden": 8}}
    agent = IQN(EnvSpec(space, gymnasium.spaces.Discrete(3)), seed=0, network=network, feature_dim=16)
    assert isinstance(agent.qnet.psi[0], NatureCnn)
    assert agent.sample(np.zeros((2, 1, 36, 36), np.uint8)).shape == (2,)


def test_the_parameters_of_another_network_are_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match=r"^IQN: the saved network does not fit this one"):
        make().load_params(make(feature_dim=8).save_params())


def test_an_action_space_that_is_not_discrete_is_refused_by_name() -> None:
    box = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    with pytest.raises(ConfigError, match=r"^IQN: expected a Discrete or MultiDiscrete action space"):
        IQN(EnvSpec(box, box), seed=0)
