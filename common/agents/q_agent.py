"""What agents with a value for each discrete action share: DQN and IQN."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Annotated, ClassVar

import gymnasium
import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator
from torch import nn

from common.agents.acting import Acting
from common.agents.actions import ActionIndex
from common.agents.exploration import EpsilonGreedy, Explorer
from common.agents.network_agent import NetworkAgent
from common.agents.networks import Mlp, build_network, is_own_network
from common.agents.policies import GreedyQ
from common.agents.training import adam, descend, draw, report_td_error, td_error_of, to_tensors, track
from common.agents.update import Update, UpdateConfig
from common.config.run_config import Unit
from common.data import Array, Items, Model, Record
from common.errors import ConfigError
from common.interfaces import EnvSpec, ReplayBuffer
from common.plugins.part_config import PluginConfig


class QAgentConfig(UpdateConfig):
    """What DQN and IQN have in common."""

    units: tuple[PositiveInt, ...] = Field((256, 256), description="Width of each hidden layer of the network.")
    network: PluginConfig | None = Field(
        None, description="The user's own network, called with in_shape, out_dim and params; null makes one of units."
    )
    lr: PositiveFloat = Field(1e-3, description="Learning rate of Adam.")
    batch_size: PositiveInt = Field(64, description="Items in one update.")
    n_updates_per_opt: PositiveInt = Field(1, description="Updates in one opt step.")
    discount_factor: Unit = Field(0.99, description="Gamma, the discount of later rewards; NStep takes it from here.")
    double_dqn: bool = Field(True, description="Choose the next action with the online network.")
    tau: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Share of the online network moved into the target at an update of it; 1 copies."
    )
    soft_update_interval: PositiveInt = Field(250, description="Opt steps between updates of the target network.")
    max_grad_norm: PositiveFloat | None = Field(10.0, description="Gradients are clipped to this norm; null does not.")
    explorer: Explorer = Field(EpsilonGreedy(), description="How actors explore, by kind: epsilon_greedy or softmax.")

    def _has_own_network(self) -> bool:
        return self.network is not None and is_own_network(self.network)

    @field_validator("explorer", mode="before")
    @classmethod
    def _epsilon_greedy_without_a_kind(cls, explorer: object) -> object:
        return {"kind": "epsilon_greedy", **explorer} if isinstance(explorer, dict) else explorer

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
    _counters: ClassVar = ("_opt_steps",)

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
        self._optimizer = adam(self.qnet.parameters(), config.lr)
        self._values = Acting(self.qnet, config, self.device)  # [n, A]
        self._learn = Update(self._learning(self._learn_from), config)
        self._opt_steps = 0
        self._rng = np.random.default_rng(seed)
        self._epsilon = epsilon

    @abc.abstractmethod
    def _qnet(self, observations: gymnasium.spaces.Box) -> nn.Module:
        """A network that turns observations ``[B, *shape]`` into action values ``[B, A]``."""

    @abc.abstractmethod
    def _loss(
        self, batch: Mapping[str, torch.Tensor], target_net: nn.Module
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The loss ``[]`` of ``qnet`` on a batch, the values it predicts and those it should have, both ``[B]``.

        The loss is weighted if the batch has weights; ``target_net``, a ``_qnet`` too, says what follows is worth.
        """

    def _network(self, observations: gymnasium.spaces.Box, out_dim: int) -> nn.Module:
        """The user's own network, or one of ``units``: ``[B, *shape]`` to ``[B, out_dim]``."""
        if self.config.network is None:
            return Mlp(observations.shape, out_dim, self.config.units)
        return build_network(self.config.network, observations, out_dim)

    def sample(self, obs: Array) -> Array:
        values = self._values(obs)
        if self.is_train:
            index = self.config.explorer.choose(values, self._opt_steps, self._epsilon, self._rng)
        else:
            index = values.argmax(axis=1)
        return self.actions.to_env(index)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        record: Record = {}
        for _ in range(self.config.n_updates_per_opt):
            record = self._update(buffer)
        self._opt_steps += 1
        if self._opt_steps % self.config.soft_update_interval == 0:
            track(self.qnet_tgt, self.qnet, self.config.tau)
        return record

    def _update(self, buffer: ReplayBuffer) -> Record:
        batch = draw(buffer, self.config.batch_size, self.device)
        results = self._learn(batch)
        report_td_error(buffer, batch, results)
        return {**results}

    def _learn_from(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        loss, prediction, target = self._loss(batch, self.qnet_tgt)
        results = {"loss": loss.detach(), "pred_mean": prediction.detach().mean(), "tgt_mean": target.mean()}
        grad_norm = descend(loss, self._optimizer, self.config.max_grad_norm)
        if grad_norm is not None:
            results["grad_norm"] = grad_norm
        return results | td_error_of(batch, prediction, target)

    def td_error(self, items: Items) -> Array:
        """The model is its own target network here, since actors have no other."""
        with torch.inference_mode():
            _, prediction, target = self._loss(to_tensors(items, self.device), self.qnet)
        error: Array = (target - prediction).cpu().numpy()
        return error

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {name: value.detach() for name, value in self.qnet.state_dict().items()}

    def sync_model(self, model: Model) -> None:
        self.qnet.load_state_dict({name: torch.from_numpy(value) for name, value in model.params.items()})
        self._opt_steps = model.version.opt_steps

    def policy(self) -> nn.Module:
        return GreedyQ(self.qnet, torch.from_numpy(self.actions.table)).to(self.device)
