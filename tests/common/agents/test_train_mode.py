"""Networks that differ in train mode, such as batch normalisation and dropout, learn in it and act without it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from common.agents.awac import AWAC
from common.agents.dqn import DQN
from common.agents.iql import IQL
from common.agents.iqn import IQN
from common.agents.network_agent import NetworkAgent
from common.agents.sac import SAC
from common.agents.td3 import TD3
from common.interfaces import EnvSpec
from common.testing import ItemMemory, check_agent
from tests.common.agents.parts import items_of

OBS = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
DISCRETE, BOX = gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(-1, 1, (1,), np.float32)
KINDS: list[tuple[type[NetworkAgent], str]] = [(DQN, "qnet"), (IQN, "qnet")]
KINDS += [(kind, name) for kind in (SAC, TD3, AWAC, IQL) for name in ("actor", "critics")]


class Normalised(nn.Module):
    """A user's network with batch normalisation and, if asked for, dropout."""

    def __init__(self, in_shape: Sequence[int], out_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(in_shape[0])
        self.layers = nn.Sequential(nn.Linear(in_shape[0], 8), nn.Dropout(dropout), nn.Linear(8, out_dim))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layers(self.norm(obs.float()))  # type: ignore[no-any-return]


def make(kind: type[NetworkAgent], dropout: float = 0.0, **params: Any) -> Any:
    network = {"target": "tests.common.agents.test_train_mode:Normalised", "params": {"dropout": dropout}}
    actions = DISCRETE if kind in (DQN, IQN) else BOX
    make_one: Any = kind
    return make_one(spec=EnvSpec(OBS, actions), seed=0, network=network, batch_size=32, **params)


def memory(kind: type[NetworkAgent]) -> ItemMemory:
    rng = np.random.default_rng(0)
    is_discrete = kind in (DQN, IQN)
    rows = [
        (
            rng.normal(5, 3, 3).astype(np.float32),
            int(rng.integers(2)) if is_discrete else rng.uniform(-1, 1, 1).astype(np.float32),
            1.0,
            rng.normal(5, 3, 3).astype(np.float32),
            False,
            False,
        )
        for _ in range(64)
    ]
    return ItemMemory(items_of(rows, np.int64 if is_discrete else np.float32))


def norms(net: nn.Module) -> list[nn.BatchNorm1d]:
    return [module for module in net.modules() if isinstance(module, nn.BatchNorm1d)]


@pytest.mark.parametrize(("kind", "name"), KINDS)
@pytest.mark.parametrize("update", ["eager", "captured"])
def test_statistics_of_batch_normalisation_follow_the_data(kind: type[NetworkAgent], name: str, update: str) -> None:
    agent, replay = make(kind, update=update), memory(kind)
    agent.train()
    for _ in range(60):
        agent.opt(replay)
    for norm in norms(getattr(agent, name)):
        assert norm.running_mean is not None
        assert norm.running_mean.tolist() == pytest.approx([5.0] * 3, abs=1.0)
        assert not norm.training


def test_the_target_has_the_statistics_of_the_online_network() -> None:
    agent, replay = make(DQN, soft_update_interval=5, tau=0.5), memory(DQN)
    for _ in range(5):
        agent.opt(replay)
    (online,), (target,) = norms(agent.qnet), norms(agent.qnet_tgt)
    assert online.running_mean is not None
    assert target.running_mean is not None
    assert torch.equal(online.running_mean, target.running_mean)
    agent.opt(replay)
    assert not torch.equal(online.running_mean, target.running_mean), "a target learns no statistics of its own"


@pytest.mark.parametrize("kind", [DQN, SAC])
def test_captured_updates_are_the_eager_ones_bit_for_bit(kind: type[NetworkAgent]) -> None:
    found = []
    for update in ("eager", "captured"):
        agent, replay = make(kind, dropout=0.5, update=update), memory(kind)
        torch.manual_seed(7)  # Dropout draws from torch's own generator.
        for _ in range(10):
            agent.opt(replay)
        found.append({name: value.clone() for name, value in agent.save_params().items()})
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@pytest.mark.parametrize("kind", [DQN, SAC])
def test_acting_drops_nothing_and_depends_on_no_other_row(kind: type[NetworkAgent]) -> None:
    agent, replay = make(kind, dropout=0.5), memory(kind)
    agent.opt(replay)
    agent.eval()
    obs = np.random.default_rng(1).normal(5, 3, (16, 3)).astype(np.float32)
    together = agent.sample(obs)
    assert np.array_equal(together, agent.sample(obs))
    singly = np.concatenate([agent.sample(obs[i : i + 1]) for i in range(16)])
    np.testing.assert_allclose(together, singly, rtol=1e-4, atol=1e-5)


def test_the_whole_check_passes() -> None:
    network = {"target": "tests.common.agents.test_train_mode:Normalised", "params": {"dropout": 0.1}}
    check_agent(partial(DQN, network=network, batch_size=16), gymnasium.make("CartPole-v1"))
