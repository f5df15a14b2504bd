"""A restored agent learns on as if nothing had happened: same batches, same parameters, bit by bit."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import safetensors.torch
import torch

from common.agents.bc import BC
from common.agents.dqn import DQN
from common.agents.iql import IQL
from common.agents.iqn import IQN
from common.agents.sac import SAC
from common.agents.td3 import TD3
from common.envs import spec_of
from common.errors import CheckpointError
from common.interfaces import Agent, TrainingState
from common.processors import OneStep
from common.testing import items_of, play
from common.testing.agents import MakeAgent
from common.testing.play import ItemMemory

SMALL: dict[str, Any] = {"units": (8,), "batch_size": 8}
AGENTS: dict[str, tuple[MakeAgent, str]] = {
    "DQN": (partial(DQN, **SMALL, soft_update_interval=7, explorer={"final_step": 100}), "CartPole-v1"),
    "IQN": (partial(IQN, **SMALL, feature_dim=8), "CartPole-v1"),
    "SAC": (partial(SAC, **SMALL), "Pendulum-v1"),
    "TD3": (partial(TD3, **SMALL, policy_delay=2), "Pendulum-v1"),
    "IQL": (partial(IQL, **SMALL), "Pendulum-v1"),
    "BC": (partial(BC, **SMALL), "Pendulum-v1"),
}


def through_a_file(state: TrainingState, path: Path) -> TrainingState:
    """As a checkpoint has it."""
    safetensors.torch.save_file({k: v.detach().clone().contiguous() for k, v in state.tensors.items()}, path)
    return TrainingState(safetensors.torch.load_file(path), json.loads(json.dumps(state.values)))


def learn(agent: Agent, memory: ItemMemory, opts: int) -> None:
    for _ in range(opts):
        assert agent.opt(memory) is not None


@pytest.mark.parametrize("name", AGENTS)
def test_a_resumed_agent_learns_and_explores_as_one_that_was_never_interrupted(name: str, tmp_path: Path) -> None:
    make, env_id = AGENTS[name]
    env = gymnasium.make(env_id)
    episodes = play(env, 100)
    memory = ItemMemory(items_of(OneStep(), episodes))
    uninterrupted = make(spec=spec_of(env), seed=1, epsilon=0.1, device="cpu")
    uninterrupted.train()
    learn(uninterrupted, memory, 11)  # An odd number: half-way between TD3's updates of its actor.
    state, later = through_a_file(uninterrupted.training_state(), tmp_path / "state"), copy.deepcopy(memory)
    resumed = make(spec=spec_of(env), seed=2, epsilon=0.1, device="cpu")
    live = {name: tensor.data_ptr() for name, tensor in resumed.model_info().items()}
    resumed.load_training_state(state)
    resumed.train()
    learn(uninterrupted, memory, 11)
    learn(resumed, later, 11)
    expected, found = uninterrupted.training_state(), resumed.training_state()
    assert expected.tensors.keys() == found.tensors.keys()
    for key, tensor in expected.tensors.items():
        assert torch.equal(tensor, found.tensors[key]), key
    assert expected.values == found.values
    obs = np.array([step.obs for episode in episodes for step in episode][:50])
    np.testing.assert_array_equal(uninterrupted.sample(obs), resumed.sample(obs))
    assert live == {name: tensor.data_ptr() for name, tensor in resumed.model_info().items()}


def test_optimisers_and_the_entropy_coefficient_are_part_of_the_state() -> None:
    env = gymnasium.make("Pendulum-v1")
    agent = SAC(spec_of(env), seed=0, **SMALL)
    learn(agent, ItemMemory(items_of(OneStep(), play(env, 20))), 1)
    names = agent.training_state().tensors.keys()
    assert {"ent_coef.log", "_ent_coef_optimizer.0.exp_avg", "_critics_optimizer.0.exp_avg_sq", "_generator"} <= names


def test_a_changed_learning_rate_holds_after_resuming() -> None:
    spec = spec_of(gymnasium.make("CartPole-v1"))
    resumed = DQN(spec, seed=0, lr=0.5, **SMALL)
    resumed.load_training_state(DQN(spec, seed=0, lr=0.1, **SMALL).training_state())
    assert resumed._optimizer.param_groups[0]["lr"] == 0.5


def test_the_state_of_another_network_or_agent_is_refused() -> None:
    spec = spec_of(gymnasium.make("CartPole-v1"))
    state = DQN(spec, seed=0, units=(8,)).training_state()
    with pytest.raises(CheckpointError, match=r"DQN: the saved network does not fit this one"):
        DQN(spec, seed=0, units=(9,)).load_training_state(state)
    with pytest.raises(CheckpointError, match=r"DQN: the saved state does not fit this agent: '_rng'"):
        DQN(spec, seed=0, units=(8,)).load_training_state(TrainingState(state.tensors))
