"""QR-DQN: the distribution of the return as quantiles at fixed levels (arXiv:1710.10044)."""

from __future__ import annotations

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from common.agents.c51 import ReturnNetwork
from common.agents.dqn import QAgent, QAgentConfig, QLoss
from common.agents.losses.distributions import quantile_huber_loss
from common.agents.losses.values import td_target, weighted_mean
from common.agents.machinery.gradient_step import Batch, discount_of
from common.agents.networks.encoders import LeafSpaces
from common.agents.networks.layers import Observed
from common.spaces import from_columns


class QuantileReturns(ReturnNetwork):
    """The outputs are quantiles of the return at the levels ``(i + 0.5) / K`` (arXiv:1710.10044)."""

    def forward(self, obs: Observed) -> torch.Tensor:
        """Action values, the means of the quantiles: observations of B rows to ``[B, A]``."""
        return self.outputs(obs).mean(dim=2)


class QRDQNConfig(QAgentConfig):
    """``agent.params`` of ``QRDQN``."""

    n_quantiles: PositiveInt = Field(
        51, description="The number of quantiles of each action's return (N); the paper's agent has 200."
    )
    kappa: PositiveFloat = Field(1.0, description="The error above which the quantile Huber loss grows linearly.")


class QRDQN(QAgent):
    """Q-learning of the quantiles of returns; it acts by their mean.

    Arguments and errors are those of ``QAgent``; params: see ``QRDQNConfig``.
    """

    Config = QRDQNConfig
    config: QRDQNConfig
    qnet: QuantileReturns
    qnet_tgt: QuantileReturns

    def _make_qnet(self, observations: LeafSpaces) -> QuantileReturns:
        config = self.config
        net = self._make_network(observations, (self.actions.size + config.dueling) * config.n_quantiles)
        return QuantileReturns(net, config.n_quantiles, dueling=config.dueling)

    def _loss(self, batch: Batch, target_net: nn.Module) -> QLoss:
        assert isinstance(target_net, QuantileReturns)
        n, rows = self.config.n_quantiles, torch.arange(len(batch["reward"]), device=self.device)
        action, target = self.actions.from_env(batch["action"]), self._target(batch, rows, target_net)  # [B], [N, B]
        prediction = self.qnet.outputs(from_columns("obs", batch))[rows, action].t()  # [N, B]
        levels = (torch.arange(n, device=self.device)[:, None] + 0.5) / n
        losses = quantile_huber_loss(prediction, target, levels, self.config.kappa)  # [B]
        return QLoss(weighted_mean(losses, batch.get("weight")), prediction.mean(dim=0), target.mean(dim=0))

    @torch.no_grad()
    def _target(self, batch: Batch, rows: torch.Tensor, target_net: QuantileReturns) -> torch.Tensor:
        """Quantiles of the return from the next observation on, ``[N, B]``."""
        action = self._choose_next(batch, target_net)  # [B]
        returns = target_net.outputs(from_columns("next_obs", batch))[rows, action].t()
        discount = discount_of(batch, self.config.discount_factor)
        return td_target(batch["reward"], batch["terminated"], returns, discount)
