"""What ``check_agent`` finds in agents of networks: recurrence, forgotten optimisers, what cannot be replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from common.agents.dqn import DQN
from common.agents.network_agent import NetworkAgent
from common.data import Array, Model, Record
from common.interfaces import Agent, EnvSpec, ReplayBuffer, TrainingState
from common.testing import check_agent


class Annealed(nn.Module):
    """Counts its calls in Python."""

    def __init__(self, in_shape: Sequence[int], out_dim: int) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(in_shape[0], out_dim), 0

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(obs) * min(1.0, self.calls / 100)  # type: ignore[no-any-return]


class Linear(Agent):
    """A greedy linear agent with an optimiser for each of its two parts."""

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float, device: str) -> None:
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        self.optimizers = [torch.optim.Adam(part.parameters(), 0.1) for part in self.net]

    def sample(self, obs: Array) -> Array:
        with torch.no_grad():
            return self.net(torch.from_numpy(obs)).argmax(dim=1).numpy()  # type: ignore[no-any-return]

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        loss = self.net(torch.from_numpy(buffer.batch(8)["obs"])).square().mean()
        self.net.zero_grad()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return {"loss": loss.detach()}

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {name: value.detach() for name, value in self.net.state_dict().items()}

    def sync_model(self, model: Model) -> None:
        self.net.load_state_dict({name: torch.from_numpy(value) for name, value in model.params.items()})

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return self.net.state_dict()

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        self.net.load_state_dict(dict(params))


class Forgetful(Linear):
    """Has a state of training of its own, without the optimisers."""

    def training_state(self) -> TrainingState:
        return TrainingState(self.save_params(), {"kept": "not much"})


class Complete(NetworkAgent, Linear):
    """Keeps what ``NetworkAgent`` finds."""

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        Linear.__init__(self, spec, **given)
        self._nets = {"net": self.net}


class Recurrent(Linear):
    """Adds a share of what it has seen before to each observation."""

    memory: Array | None = None

    def sample(self, obs: Array) -> Array:
        memory = np.zeros_like(obs) if self.memory is None or self.memory.shape != obs.shape else self.memory
        self.memory = obs + 0.9 * memory
        return super().sample(self.memory)


class Drawing(Linear):
    """Draws its actions, also in eval mode, from a generator without a seed."""

    def sample(self, obs: Array) -> Array:
        return np.random.default_rng().integers(2, size=len(obs))


class Scalar(Linear):
    """Gives one number instead of an array."""

    def sample(self, obs: Array) -> Array:
        return super().sample(obs)[0]  # type: ignore[no-any-return]


def cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def annealed(**params: Any) -> partial[DQN]:
    return partial(DQN, network={"target": "tests.common.test_testing_agents:Annealed"}, batch_size=8, **params)


def test_a_network_of_a_users_own_learns_eagerly_unless_it_asks_to_be_captured() -> None:
    agents = [annealed(**params)(spec=spec(), seed=0) for params in ({}, {"update": "captured"})]
    assert [agent.config.is_eager for agent in agents] == [True, False]
    assert not DQN(spec(), seed=0).config.is_eager
    assert not DQN(spec(), seed=0, update="captured").config.is_eager
    check_agent(annealed(), cartpole())


def spec() -> EnvSpec:
    env = cartpole()
    return EnvSpec(env.observation_space, env.action_space)


def test_a_network_that_is_frozen_by_capturing_is_found() -> None:
    with pytest.raises(AssertionError, match=r"with update: captured the agent learns another 'qnet.*update: eager"):
        check_agent(annealed(update="captured"), cartpole())


def test_an_agent_that_can_be_captured_passes() -> None:
    check_agent(partial(DQN, units=(8,), batch_size=8), cartpole())


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (Recurrent, "so the agent is recurrent"),
        (Drawing, "is not deterministic after eval"),
        (Forgetful, r"leaves out what the optimiser 'optimizers\.0' has gathered"),
        (Scalar, r"of shape \[\]: return a numpy array of shape \[1\]"),
    ],
)
def test_an_agent_is_found_that_is(agent: type[Agent], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_agent(agent, cartpole())


def test_an_agent_without_a_state_of_training_is_warned_of_its_optimisers() -> None:
    with pytest.warns(UserWarning, match=r"the optimiser 'optimizers\.[01]' has gathered, so --resume begins it anew"):
        check_agent(Linear, cartpole())


def test_optimisers_in_a_list_are_kept_by_a_network_agent() -> None:
    check_agent(Complete, cartpole())
