"""DQN (Mnih et al. 2015), by choice double (arXiv:1509.06461) and dueling (arXiv:1511.06581)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import torch
from pydantic import Field
from torch import nn

from common.agents.losses import CriticLoss, critic_loss, double_q_value, greedy_value, td_target
from common.agents.networks import Dueling
from common.agents.q_agent import QAgent, QAgentConfig
from common.interfaces import EnvSpec


class DQNConfig(QAgentConfig):
    """``agent.params`` of ``common.agents.dqn:DQN``."""

    critic_loss: CriticLoss = Field("smooth_l1", description="smooth_l1 (Huber) or mse.")
    dueling: bool = Field(False, description="Value and advantages apart, in the last layer of the network.")


class DQN(QAgent):
    """Q-learning: the network learns the expected return, target = reward + discount * V(next_obs).

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
    config: DQNConfig

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float = 0.0, device: str = "cpu", **params: Any) -> None:
        super().__init__(spec, DQNConfig(**params), seed=seed, epsilon=epsilon, device=device)

    def _qnet(self, observations: gymnasium.spaces.Box) -> nn.Module:
        if self.config.dueling:
            return Dueling(self._network(observations, 1 + self.actions.size))
        return self._network(observations, self.actions.size)

    def _loss(
        self, batch: Mapping[str, torch.Tensor], target_net: nn.Module
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        target = self._target(batch, target_net)
        action = self.actions.from_env(batch["action"])
        prediction = self.qnet(batch["obs"]).gather(1, action[:, None]).squeeze(1)  # [B]
        return critic_loss(self.config.critic_loss, prediction, target, batch.get("weight")), prediction, target

    @torch.no_grad()
    def _target(self, batch: Mapping[str, torch.Tensor], target_net: nn.Module) -> torch.Tensor:
        q_next = target_net(batch["next_obs"])  # [B, A]
        value = double_q_value(self.qnet(batch["next_obs"]), q_next) if self.config.double_dqn else greedy_value(q_next)
        discount = batch.get("discount", self.config.discount_factor)  # [B], or one for all
        return td_target(batch["reward"], batch["terminated"], value, discount)  # [B]
