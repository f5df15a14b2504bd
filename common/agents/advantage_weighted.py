"""What agents share that imitate the batch's actions, the better ones more: AWAC and IQL."""

from __future__ import annotations

import abc
from collections.abc import Mapping

import torch
from pydantic import Field, PositiveFloat

from common.agents.actor_critic import ActorCritic, ActorCriticConfig
from common.agents.losses_offline import exp_weight, softmax_weight, weighted_imitation_loss
from common.agents.stochastic import GaussianConfig, GaussianPolicy
from common.agents.training import descend, track


class AdvantageWeightedConfig(ActorCriticConfig, GaussianConfig):
    """What the settings of AWAC and IQL have in common."""

    inv_lambda: PositiveFloat = Field(10.0, description="How much likelier better actions get; towards 0 all alike.")
    exp_adv_max: PositiveFloat = Field(100.0, description="Greatest weight of an action, without adv_softmax.")
    adv_softmax: bool = Field(False, description="Weights are relative to their mean in the batch, and not bounded.")


class AdvantageWeighted(ActorCritic):
    """A Gaussian policy drawn to the batch's actions by the exponential of their advantage; which, is the subclass's.

    Arguments and errors are those of ``ActorCritic``; params: see the subclass's ``Config``.
    """

    config: AdvantageWeightedConfig
    actor: GaussianPolicy

    @abc.abstractmethod
    def _advantage(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """How much better actions ``[B, A]`` are than the policy, ``[B]``."""

    def _make_actor(self, n_dims: int) -> GaussianPolicy:
        return GaussianPolicy(self._make_network(n_dims), n_dims, self.config)

    def _explore(self, obs: torch.Tensor) -> torch.Tensor:
        return self.actor.draw(obs, self._generator)

    def _improve_actor(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        config, obs, action = self.config, batch["obs"], batch["action"]
        with torch.no_grad():
            advantage = self._advantage(obs, action)  # [B]
        if config.adv_softmax:
            weight = softmax_weight(advantage, config.inv_lambda)  # [B]
        else:
            weight = exp_weight(advantage, config.inv_lambda, config.exp_adv_max)
        log_prob = self.actor.log_prob(obs, action)  # [B]
        loss = weighted_imitation_loss(log_prob, weight)
        descend(loss, self._actor_optimizer, config.max_grad_norm)
        track(self.critics_tgt, self.critics, config.tau)
        return {"loss_actor": loss.detach(), "adv_mean": advantage.mean(), "log_prob": log_prob.detach().mean()}
