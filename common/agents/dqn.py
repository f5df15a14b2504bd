"""DQN (Mnih et al. 2015), double by choice (arXiv:1509.06461)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import gymnasium
import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import nn

from common.agents.actions import ActionIndex
from common.agents.exploration import EpsilonGreedy
from common.agents.losses import CriticLoss, critic_loss, double_q_value, greedy_value, td_target
from common.agents.networks import Mlp, build_network
from common.agents.training import descend, restore, saved, to_tensors, track
from common.config import PluginConfig, Unit
from common.data import Array, Model, Record
from common.errors import ConfigError
from common.interfaces import Agent, EnvSpec, ReplayBuffer
from common.settings import Settings


class DQNConfig(Settings):
    """``agent.params`` of ``common.agents.dqn:DQN``."""

    units: tuple[PositiveInt, ...] = Field((256, 256), description="Width of each hidden layer of the Q network.")
    network: PluginConfig | None = Field(
        None, description="The user's own Q network, called with in_shape, out_dim and params; null makes one of units."
    )
    lr: PositiveFloat = Field(1e-3, description="Learning rate of Adam.")
    batch_size: PositiveInt = Field(64, description="Items in one update.")
    n_updates_per_opt: PositiveInt = Field(1, description="Updates in one opt step.")
    discount_factor: Unit = Field(0.99, description="Gamma, unless items bring a discount column.")
    double_dqn: bool = Field(True, description="Choose the next action with the online network.")
    critic_loss: CriticLoss = Field("smooth_l1", description="smooth_l1 (Huber) or mse.")
    tau: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Share of the online network moved into the target at an update of it; 1 copies."
    )
    soft_update_interval: PositiveInt = Field(250, description="Opt steps between updates of the target network.")
    max_grad_norm: PositiveFloat | None = Field(10.0, description="Gradients are clipped to this norm; null does not.")
    explorer: EpsilonGreedy = Field(EpsilonGreedy(), description="Exploration of the actors.")

    @model_validator(mode="after")
    def _one_network(self) -> DQNConfig:
        if self.network is not None and "units" in self.model_fields_set:
            raise ValueError("give units or network, not both: a network takes its widths as network.params")
        return self


class DQN(Agent):
    """Q-learning over a discrete action space, with one value for each action or combination of actions.

    It learns from the columns of ``common.processors.OneStep``. A column ``discount``, as ``NStep`` makes it, takes the
    place of ``discount_factor``: target = reward + discount * V(next_obs).

    Args:
        spec: ``gymnasium.spaces.Box`` observations of any shape, ``Discrete`` or ``MultiDiscrete`` actions.
        seed: of the initial weights and of exploration.
        epsilon: this actor's rung of the exploration ladder.
        device: where the networks live.
        params: see ``DQNConfig``.

    Raises:
        ConfigError: the observation space is no Box, or the action space neither Discrete nor MultiDiscrete, or it has
            too many joint actions.
        PluginError: the user's own network cannot be built or gives something else than one value an action.
    """

    Config = DQNConfig

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float = 0.0, device: str = "cpu", **params: Any) -> None:
        observations = spec.observation_space
        if not isinstance(observations, gymnasium.spaces.Box):
            raise ConfigError(f"DQN: expected Box observations, found {observations}")
        self.config = DQNConfig(**params)
        self.device = torch.device(device)
        self.actions = ActionIndex("DQN", spec.action_space, self.device)
        torch.manual_seed(seed)
        self.qnet, self.qnet_tgt = (self._network(observations).to(self.device) for _ in range(2))
        self.qnet_tgt.load_state_dict(self.qnet.state_dict())
        self._nets = {"qnet": self.qnet, "qnet_tgt": self.qnet_tgt}
        self._optimizer = torch.optim.Adam(self.qnet.parameters(), lr=self.config.lr)
        self._n_opts = 0
        self._rng = np.random.default_rng(seed)
        self._final_epsilon = epsilon
        self.epsilon = self.config.explorer.at(0, epsilon)

    def _network(self, observations: gymnasium.spaces.Box) -> nn.Module:
        if self.config.network is None:
            return Mlp(observations.shape, self.actions.size, self.config.units)
        return build_network(self.config.network, observations, self.actions.size)

    def sample(self, obs: Array) -> Array:
        greedy = np.full(len(obs), True)
        if self.is_train:
            greedy = self._rng.random(len(obs)) >= self.epsilon
        actions = self._rng.integers(self.actions.size, size=len(obs))
        if greedy.any():
            with torch.inference_mode():
                values = self.qnet(torch.from_numpy(obs).to(self.device))  # [n, A]
            actions = np.where(greedy, values.argmax(dim=1).cpu().numpy(), actions)
        return self.actions.to_env(actions)

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
        with torch.no_grad():
            q_next = self.qnet_tgt(batch["next_obs"])  # [B, A]
            value = (
                double_q_value(self.qnet(batch["next_obs"]), q_next) if self.config.double_dqn else greedy_value(q_next)
            )
            discount = batch.get("discount", self.config.discount_factor)  # [B], or one for all
            target = td_target(batch["reward"], batch["terminated"], value, discount)  # [B]
        action = self.actions.from_env(batch["action"])  # [B]
        prediction = self.qnet(batch["obs"]).gather(1, action[:, None]).squeeze(1)  # [B]
        loss = critic_loss(self.config.critic_loss, prediction, target)
        record: Record = {"loss": loss.detach(), "pred_mean": prediction.detach().mean(), "tgt_mean": target.mean()}
        grad_norm = descend(loss, self._optimizer, self.config.max_grad_norm)
        return record if grad_norm is None else {**record, "grad_norm": grad_norm}

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {name: value.detach() for name, value in self.qnet.state_dict().items()}

    def sync_model(self, model: Model) -> None:
        self.qnet.load_state_dict({name: torch.from_numpy(value) for name, value in model.params.items()})
        self.epsilon = self.config.explorer.at(model.version.opt_steps, self._final_epsilon)

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return saved(self._nets)

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        restore("DQN", self._nets, params)
