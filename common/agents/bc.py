"""BC: behaviour cloning, the actions of the items are imitated and their rewards are not looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from common.agents.acting import Acting
from common.agents.actions import ActionIndex, ActionScale
from common.agents.network_agent import NetworkAgent
from common.agents.networks import Mlp
from common.agents.policies import GreedyActor, GreedyQ
from common.agents.stochastic import CategoricalPolicy, GaussianConfig, GaussianPolicy
from common.agents.training import adam, descend, draw
from common.agents.update import Update, UpdateConfig
from common.data import Array, Model, Record
from common.errors import ConfigError
from common.interfaces import EnvSpec, ReplayBuffer

Mapped = Callable[[torch.Tensor], torch.Tensor]


class BCConfig(UpdateConfig, GaussianConfig):
    """``agent.params`` of ``common.agents.bc:BC``."""

    units: tuple[PositiveInt, ...] = Field((256, 256), description="Width of each hidden layer.")
    lr: PositiveFloat = Field(3e-4, description="Learning rate of Adam.")
    batch_size: PositiveInt = Field(256, description="Items in one update.")
    max_grad_norm: PositiveFloat | None = Field(None, description="Gradients are clipped to this norm; null does not.")


class BC(NetworkAgent):
    """Maximum likelihood of the actions: cross entropy where they are discrete, a Gaussian around tanh where not.

    Args:
        spec: ``gymnasium.spaces.Box`` observations of any shape; ``Discrete`` or ``MultiDiscrete`` actions, or
            ``Box`` ones of any shape with finite bounds.
        seed: of the initial weights and of all draws.
        epsilon: not used; in train mode actions are drawn from the policy.
        device: where the network lives.
        params: see ``BCConfig``.

    Raises:
        ConfigError: the spaces are others.
    """

    Config = BCConfig

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        epsilon: float = 0.0,  # noqa: ARG002 - every agent is given one
        device: str = "cpu",
        **params: Any,
    ) -> None:
        observations, actions = spec.observation_space, spec.action_space
        if not isinstance(observations, gymnasium.spaces.Box):
            raise ConfigError(f"BC: expected Box observations, found {observations}")
        self.config = config = BCConfig(**params)
        self.device = torch.device(device)
        torch.manual_seed(seed)
        self._build(observations, actions)
        self._optimizer = adam(self.imitator.parameters(), config.lr)
        self._imitate = Update(self._learning(self._imitate_batch), config)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._act_greedily = Acting(self._greedy, config, self.device)
        self._act_exploring = Acting(self._explore, config, self.device)

    def _build(self, observations: gymnasium.spaces.Box, actions: gymnasium.Space[Any]) -> None:
        """The network, the greedy policy, and the way from the environment's actions to the network's and back."""
        self.imitator: CategoricalPolicy | GaussianPolicy
        if isinstance(actions, gymnasium.spaces.Box):
            scale = ActionScale("BC", actions, self.device)
            mean = Mlp(observations.shape, scale.size, self.config.units)
            self.imitator = GaussianPolicy(mean, scale.size, self.config).to(self.device)
            self._greedy: nn.Module = GreedyActor(self.imitator, scale)
            self._from_env: Mapped = scale.from_env
            self._to_env: Mapped = scale.to_env
        else:
            index = ActionIndex("BC", actions, self.device)
            table = torch.from_numpy(index.table).to(self.device)
            self.imitator = CategoricalPolicy(Mlp(observations.shape, index.size, self.config.units)).to(self.device)
            self._greedy = GreedyQ(self.imitator, table)
            self._from_env, self._to_env = index.from_env, table.__getitem__
        self._nets = {"policy": self.imitator}

    def sample(self, obs: Array) -> Array:
        return self._act_exploring(obs) if self.is_train else self._act_greedily(obs)

    def _explore(self, obs: torch.Tensor) -> torch.Tensor:
        """Actions as the environment takes them, drawn for observations ``[n, *shape]``."""
        return self._to_env(self.imitator.draw(obs, self._generator))

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        return {**self._imitate(draw(buffer, self.config.batch_size, self.device))}

    def _imitate_batch(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        loss = -self.imitator.log_prob(batch["obs"], self._from_env(batch["action"])).mean()
        descend(loss, self._optimizer, self.config.max_grad_norm)
        return {"loss": loss.detach()}

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {name: value.detach() for name, value in self.imitator.state_dict().items()}

    def sync_model(self, model: Model) -> None:
        self.imitator.load_state_dict({name: torch.from_numpy(value) for name, value in model.params.items()})

    def policy(self) -> nn.Module:
        return self._greedy
