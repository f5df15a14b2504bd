"""What all agents of action values share beyond DQN's own parts, which test_dqn.py shows."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from common.agents.c51 import C51
from common.agents.dqn import DQN, QAgent
from common.agents.iqn import IQN
from common.agents.networks.noisy import NoisyLinear
from common.agents.qr_dqn import QRDQN
from common.data import Array
from common.errors import ConfigError
from common.interfaces import EnvSpec
from crossborder.testing import ItemMemory, check_agent
from crossborder.testing.agent_checks import MakeAgent
from tests.common.agents.parts import CHAIN, FIRST, SECOND, holding

SPEC = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
SMALL: dict[str, Any] = {"units": (16,), "lr": 5e-3, "batch_size": 16, "discount_factor": 0.9}
KINDS: dict[str, MakeAgent] = {
    "DQN": partial(DQN, **SMALL),
    "IQN": partial(IQN, **SMALL, feature_dim=16, embed_dim=16),
    "C51": partial(C51, **SMALL, v_min=-1.0, v_max=2.0, n_atoms=31),
    "QRDQN": partial(QRDQN, **SMALL, n_quantiles=11),
}
VARIANTS: dict[str, Any] = {
    "normalize_observations": True,
    "noisy": 0.5,
    "explorer": {"kind": "greedy"},
    "dueling": True,
}


def make(name: str, *, epsilon: float = 0.0, **params: Any) -> QAgent:
    agent = KINDS[name](spec=SPEC, seed=0, epsilon=epsilon, device="cpu", **params)
    assert isinstance(agent, QAgent)
    return agent


def values(agent: QAgent) -> Array:
    with torch.inference_mode():
        found: Array = agent.qnet(agent.normalizer(torch.from_numpy(np.stack([FIRST, SECOND])))).numpy()
    return found


def learnt(agent: QAgent, opts: int) -> QAgent:
    memory = holding(CHAIN)
    for _ in range(opts):
        agent.opt(memory)
    agent.eval()
    return agent


@pytest.mark.parametrize("name", KINDS)
def test_every_agent_fits_with_all_variants_at_once(name: str) -> None:
    check_agent(partial(KINDS[name], **VARIANTS), gymnasium.make("CartPole-v1"), steps=200)


# Noise.


@pytest.mark.parametrize("name", KINDS)
def test_a_noisy_agent_learns_the_values_of_two_states(name: str) -> None:
    agent = learnt(make(name, noisy=0.5, soft_update_interval=10), 700)
    np.testing.assert_allclose(values(agent), [[0.9, 0.3], [1.0, 0.0]], atol=0.12)
    assert agent.sample(np.stack([FIRST, SECOND])).tolist() == [0, 0]


@pytest.mark.parametrize("update", ["eager", "captured"])
def test_a_noisy_agent_explores_by_new_noise_in_each_step_and_evaluates_without(update: str) -> None:
    agent = make("DQN", noisy=2.0, explorer={"kind": "greedy"}, update=update)
    obs = np.zeros((1, 2), np.float32)
    agent.train()
    explored = {int(agent.sample(obs)[0]) for _ in range(50)}
    assert explored == {0, 1}
    agent.eval()
    assert len({int(agent.sample(obs)[0]) for _ in range(20)}) == 1


def test_online_and_target_network_have_noise_of_their_own_in_an_update() -> None:
    agent, seen = make("DQN", noisy=0.5, update="eager"), []
    for net in (agent.qnet, agent.qnet_tgt):
        layer = next(module for module in net.modules() if isinstance(module, NoisyLinear))
        layer.register_forward_pre_hook(lambda layer, _: seen.append(layer._noise))
    agent.opt(holding(CHAIN))
    weights = [torch.outer(*noise) for noise in seen]
    assert len(weights) == 3
    assert len({float(weight.sum()) for weight in weights}) == 2


def test_without_noise_there_is_no_generator_of_it_to_save() -> None:
    assert "_noise_generator" in make("DQN", noisy=0.5).training_state().tensors
    assert "_noise_generator" not in make("DQN").training_state().tensors


def test_all_layers_of_iqn_but_those_of_the_levels_are_noisy() -> None:
    agent = make("IQN", noisy=0.5)
    noisy = {name.partition(".")[0] for name, module in agent.qnet.named_modules() if isinstance(module, NoisyLinear)}
    assert noisy == {"psi", "f"}


# Dueling.


@pytest.mark.parametrize("name", KINDS)
def test_a_dueling_agent_learns_the_values_of_two_states(name: str) -> None:
    agent = learnt(make(name, dueling=True, soft_update_interval=10), 500)
    np.testing.assert_allclose(values(agent), [[0.9, 0.3], [1.0, 0.0]], atol=0.1)


# Evaluation.


def test_an_evaluation_may_take_random_actions_and_the_exported_policy_never_does() -> None:
    agent, obs = make("DQN", eval_epsilon=0.5), np.repeat(FIRST[None], 10_000, axis=0)
    greedy = int(agent.policy()(torch.from_numpy(FIRST[None]))[0])
    agent.eval()
    assert (agent.sample(obs) == greedy).mean() == pytest.approx(0.75, abs=0.02)
    assert agent.policy()(torch.from_numpy(obs)).unique().tolist() == [greedy]


def test_evaluations_change_no_exploration_and_are_alike() -> None:
    one, other = (make("DQN", epsilon=0.5, eval_epsilon=0.5, explorer={"final_step": 0}) for _ in range(2))
    obs, evaluated = np.repeat(FIRST[None], 100, axis=0), []
    for _ in range(2):
        other.eval()
        evaluated.append(other.sample(obs).tolist())
    assert evaluated[0] == evaluated[1]
    for agent in (one, other):
        agent.train()
    np.testing.assert_array_equal(one.sample(obs), other.sample(obs))


# Normalised observations.


def test_observations_of_any_size_are_learnt_from_when_they_are_normalised() -> None:
    agent = make("DQN", normalize_observations=True, soft_update_interval=10)
    large = np.float32(1e4)
    rows = [(obs * large, action, reward, after * large, *ends) for obs, action, reward, after, *ends in CHAIN]
    memory: ItemMemory = holding(rows)
    for _ in range(500):
        agent.opt(memory)
    agent.eval()
    assert agent.sample(np.stack([FIRST, SECOND]) * large).tolist() == [0, 0]
    assert agent.policy()(torch.from_numpy(np.stack([FIRST, SECOND]) * large)).tolist() == [0, 0]


def test_pictures_are_not_normalised() -> None:
    spec = EnvSpec(gymnasium.spaces.Box(0, 255, (1, 36, 36), np.uint8), SPEC.action_space)
    with pytest.raises(ConfigError, match="normalize_observations: expected observations of floats"):
        DQN(spec, seed=0, normalize_observations=True)


# The optimiser.


def test_the_optimiser_is_the_one_asked_for() -> None:
    agent = make("DQN", optimizer={"eps": 0.005 / 32})
    assert agent._optimizer.param_groups[0]["eps"] == 0.005 / 32
