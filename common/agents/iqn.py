"""IQN: implicit quantile networks for distributional reinforcement learning (arXiv:1806.06923)."""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from common.agents.dqn import MunchausenConfig, QAgent, QLoss, join_dueling
from common.agents.losses.distributions import quantile_huber_loss
from common.agents.losses.values import td_target, weighted_mean
from common.agents.machinery.gradient_step import Batch, discount_of
from common.agents.networks.encoders import LeafSpaces
from common.agents.networks.layers import Head, Linear, Observed
from common.interfaces import EnvSpec
from common.spaces import from_columns


class IQNConfig(MunchausenConfig):
    """``agent.params`` of ``IQN``; ``units`` or ``network`` make the features of an observation."""

    feature_dim: PositiveInt = Field(
        256,
        description="The number of features of an observation, and of each picture in it; also the width of the "
        "layer above.",
    )
    embed_dim: PositiveInt = Field(64, description="The number of cosines that encode the level of a quantile.")
    n_quantiles: PositiveInt = Field(8, description="The number of levels that are drawn for a prediction (N).")
    n_quantiles_tgt: PositiveInt = Field(
        8, description="The number of levels that are drawn for a target (N'); the paper's agent draws 64."
    )
    n_quantiles_act: PositiveInt = Field(
        32, description="The number of evenly spaced levels over whose quantiles an action's value is the mean (K)."
    )
    kappa: PositiveFloat = Field(1.0, description="The error above which the quantile Huber loss grows linearly.")


class QuantileNet(nn.Module):
    """Quantiles of the return of each action: ``Z_tau(s, a) = f(psi(s) * phi(tau))_a`` (arXiv:1806.06923, 3.1).

    ``f`` has one hidden layer. Here the features are the outputs of a whole network. In the paper they are the outputs
    of the convolutions, so the widest layer of all comes after them and is computed N times.

    Args:
        network: observations of B rows to ``[B, feature_dim]``; psi is its positive part.
        feature_dim: width of psi, phi and the hidden layer.
        n_actions: A.
        embed_dim: number of cosines.
        n_levels: K, evenly spaced levels whose mean quantile is an action's value.
        dueling: whether ``f`` gives quantiles of a state value and of advantages, which are joined at each level.
    """

    levels: torch.Tensor  # [K, 1]
    frequencies: torch.Tensor  # [E]

    def __init__(
        self,
        network: nn.Module,
        feature_dim: int,
        n_actions: int,
        embed_dim: int,
        n_levels: int,
        *,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        self._dueling = dueling
        self.psi = nn.Sequential(network, nn.ReLU())
        self.phi = nn.Sequential(Linear(embed_dim, feature_dim), nn.ReLU(inplace=True))
        hidden = Linear(feature_dim, feature_dim)
        self.f = nn.Sequential(hidden, nn.ReLU(inplace=True), Head(feature_dim, n_actions + dueling))
        levels = (torch.arange(n_levels)[:, None] + 0.5) / n_levels
        self.register_buffer("levels", levels, persistent=False)
        self.register_buffer("frequencies", math.pi * torch.arange(embed_dim), persistent=False)

    def forward(self, obs: Observed) -> torch.Tensor:
        """Action values: observations of B rows to ``[B, A]``."""
        return self.quantiles(obs, self.levels).mean(dim=0)

    def quantiles(self, obs: Observed, levels: torch.Tensor) -> torch.Tensor:
        """Quantiles ``[N, B, A]`` at ``levels`` in [0, 1], ``[N, B]``, or ``[N, 1]`` for all observations alike."""
        embedding = self.phi((levels[..., None] * self.frequencies).cos())  # [N, B or 1, F]
        quantiles: torch.Tensor = self.f(self.psi(obs) * embedding)
        return join_dueling(quantiles) if self._dueling else quantiles


class IQN(QAgent):
    """Q-learning of the whole distribution of returns; it acts by the mean of the distribution.

    Arguments and errors are those of ``QAgent``; params: see ``IQNConfig``.
    """

    Config = IQNConfig
    config: IQNConfig
    qnet: QuantileNet
    qnet_tgt: QuantileNet

    def __init__(self, spec: EnvSpec, *, seed: int, **given: Any) -> None:
        super().__init__(spec, seed=seed, **given)
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def _make_qnet(self, observations: LeafSpaces) -> QuantileNet:
        config = self.config
        network = self._make_network(observations, config.feature_dim)
        sizes = config.feature_dim, self.actions.size, config.embed_dim, config.n_quantiles_act
        net = QuantileNet(network, *sizes, dueling=config.dueling)
        self._add_noise(net.f)
        return net

    def _loss(self, batch: Batch, target_net: nn.Module) -> QLoss:
        assert isinstance(target_net, QuantileNet)
        action = self.actions.from_env(batch["action"])  # [B]
        target = self._target(batch, action, target_net)  # [N', B]
        levels = self._sample_levels(self.config.n_quantiles, len(action))  # [N, B]
        prediction = _select(self.qnet.quantiles(from_columns("obs", batch), levels), action)  # [N, B]
        losses = quantile_huber_loss(prediction, target, levels, self.config.kappa)  # [B]
        return QLoss(weighted_mean(losses, batch.get("weight")), prediction.mean(dim=0), target.mean(dim=0))

    @torch.no_grad()
    def _target(self, batch: Batch, action: torch.Tensor, target_net: QuantileNet) -> torch.Tensor:
        """Quantiles of the return from the next observation on, ``[N', B]``."""
        reward, munchausen = batch["reward"], self.config.munchausen
        levels = self._sample_levels(self.config.n_quantiles_tgt, len(action))  # [N', B]
        next_obs = from_columns("next_obs", batch)
        quantiles = target_net.quantiles(next_obs, levels)  # [N', B, A]
        if munchausen is not None:
            obs = from_columns("obs", batch)
            reward = reward + munchausen.bonus(self.allowed(target_net(obs), obs), action)
            returns = munchausen.value(quantiles, self.allowed(quantiles.mean(dim=0), next_obs))
        else:
            returns = _select(quantiles, self._choose_next(batch, target_net))  # [N', B]
        discount = discount_of(batch, self.config.discount_factor)
        return td_target(reward, batch["terminated"], returns, discount)

    def _sample_levels(self, n: int, batch_size: int) -> torch.Tensor:
        """Uniform levels in [0, 1], ``[n, B]``."""
        return torch.rand((n, batch_size), generator=self._generator, device=self.device)


def _select(quantiles: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """The quantiles of the actions ``[B]``: ``[N, B, A]`` to ``[N, B]``."""
    return quantiles.gather(2, action.expand(len(quantiles), -1)[..., None]).squeeze(2)
