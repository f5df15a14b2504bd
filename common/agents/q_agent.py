"""What agents with a value for each discrete action share: DQN and IQN."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Annotated, ClassVar

import gymnasium
import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import nn

from common.agents.actions import ActionIndex
from common.agents.exploration import EpsilonGreedy
from common.agents.network_agent import NetworkAgent
from common.agents.networks import Mlp, build_network
from common.agents.policies import GreedyQ
from common.agents.training import descend, to_tensors, track
from common.config import PluginConfig, Unit
from common.data import Array, Model, Record
from common.errors import ConfigError
from common.interfaces import EnvSpec, ReplayBuffer, TrainingState
from common.settings import Settings


class QAgentConfig(Settings):
    """What DQN and IQN have in common."""

    units: tuple[PositiveInt, ...] = Field((256, 256), description="Width of each hidden layer of the network.")
    network: PluginConfig | None = Field(
        None, description="The user's own network, called with in_shape, out_dim and params; null makes one of units."
    )
    lr: PositiveFloat = Field(1e-3, description="Learning rate of Adam.")
    batch_size: PositiveInt = Field(64, description="Items in one update.")
    n_updates_per_opt: PositiveInt = Field(1, description="Updates in one opt step.")
    discount_factor: Unit = Field(0.99, description="Gamma, unless items bring a discount column.")
    double_dqn: bool = Field(True, description="Choose the next action with the online network.")
    tau: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Share of the online network moved into the target at an update of it; 1 copies."
    )
    soft_update_interval: PositiveInt = Field(250, description="Opt steps between updates of the target network.")
    max_grad_norm: PositiveFloat | None = Field(10.0, description="Gradients are clipped to this norm; null does not.")
    explorer: EpsilonGreedy = Field(EpsilonGreedy(), description="Exploration of the actors.")

    @model_validator(mode="after")
    def _one_network(self) -> QAgentConfig:
        if self.network is not None and "units" in self.model_fields_set:
            raise ValueError("give units or network, not both: a network takes its widths as network.params")
        return self


class QAgent(NetworkAgent):
    """A network of action values and its target; what the network is and how it learns is the subclass's.

    It learns from the columns of ``common.processors.OneStep``. A column ``discount``, as ``NStep`` makes it, takes the
    place of ``discount_factor``.

    Args:
        spec: ``gymnasium.spaces.Box`` observations of any shape and ``Discrete`` or ``MultiDiscrete`` actions.
        config: the agent's settings.
        seed: of the initial weights and of exploration.
        epsilon: this actor's rung of the exploration ladder.
        device: where the networks live.

    Raises:
        ConfigError: the observation space is no Box, or the action space neither Discrete nor MultiDiscrete.
        PluginError: the user's own network cannot be built or gives other outputs than it is asked for.
    """

    config: QAgentConfig
    _counters: ClassVar = ("_n_opts",)

    def __init__(self, spec: EnvSpec, config: QAgentConfig, *, seed: int, epsilon: float, device: str) -> None:
        name, observations = type(self).__name__, spec.observation_space
        if not isinstance(observations, gymnasium.spaces.Box):
            raise ConfigError(f"{name}: expected Box observations, found {observations}")
        self.config = config
        self.device = torch.device(device)
        self.actions = ActionIndex(name, spec.action_space, self.device)
        torch.manual_seed(seed)
        self.qnet, self.qnet_tgt = (self._qnet(observations).to(self.device) for _ in range(2))
        self.qnet_tgt.load_state_dict(self.qnet.state_dict())
        self._nets = {"qnet": self.qnet, "qnet_tgt": self.qnet_tgt}
        self._optimizer = torch.optim.Adam(self.qnet.parameters(), lr=config.lr)
        self._n_opts = 0
        self._rng = np.random.default_rng(seed)
        self._final_epsilon = epsilon
        self.epsilon = config.explorer.at(0, epsilon)

    @abc.abstractmethod
    def _qnet(self, observations: gymnasium.spaces.Box) -> nn.Module:
        """A network that turns observations ``[B, *shape]`` into action values ``[B, A]``."""

    @abc.abstractmethod
    def _loss(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The loss ``[]`` of ``qnet`` on a batch, the values it predicts and those it should have, both ``[B]``."""

    def _network(self, observations: gymnasium.spaces.Box, out_dim: int) -> nn.Module:
        """The user's own network, or one of ``units``: ``[B, *shape]`` to ``[B, out_dim]``."""
        if self.config.network is None:
            return Mlp(observations.shape, out_dim, self.config.units)
        return build_network(self.config.network, observations, out_dim)

    def sample(self, obs: Array) -> Array:
        greedy = np.full(len(obs), True)
        if self.is_train:
            greedy = self._rng.random(len(obs)) >= self.epsilon
        index = self._rng.integers(self.actions.size, size=len(obs))
        if greedy.any():
            with torch.inference_mode():
                values = self.qnet(torch.from_numpy(obs).to(self.device))  # [n, A]
            index = np.where(greedy, values.argmax(dim=1).cpu().numpy(), index)
        return self.actions.to_env(index)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        record: Record = {}
        for _ in range(self.config.n_updates_per_opt):
            record = self._update(buffer)
        self._n_opts += 1
        self.epsilon = self.config.explorer.at(self._n_opts, self._final_epsilon)
        if self._n_opts % self.config.soft_update_interval == 0:
            track(self.qnet_tgt, self.qnet, self.config.tau)
        return record

    def _update(self, buffer: ReplayBuffer) -> Record:
        batch = to_tensors(buffer.batch(self.config.batch_size), self.device)
        loss, prediction, target = self._loss(batch)
        record: Record = {"loss": loss.detach(), "pred_mean": prediction.detach().mean(), "tgt_mean": target.mean()}
        grad_norm = descend(loss, self._optimizer, self.config.max_grad_norm)
        return record if grad_norm is None else {**record, "grad_norm": grad_norm}

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {name: value.detach() for name, value in self.qnet.state_dict().items()}

    def sync_model(self, model: Model) -> None:
        self.qnet.load_state_dict({name: torch.from_numpy(value) for name, value in model.params.items()})
        self.epsilon = self.config.explorer.at(model.version.opt_steps, self._final_epsilon)

    def load_training_state(self, state: TrainingState) -> None:
        super().load_training_state(state)
        self.epsilon = self.config.explorer.at(self._n_opts, self._final_epsilon)

    def policy(self) -> nn.Module:
        return GreedyQ(self.qnet, torch.from_numpy(self.actions.table)).to(self.device)
