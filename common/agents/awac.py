"""AWAC: advantage-weighted actor-critic (arXiv:2006.09359), offline, online, or first offline and then online.

``AdvantageWeighted`` is the part that it shares with IQL (``common.agents.iql``): how the actor and the critics learn.
"""

from __future__ import annotations

import abc

import torch
from pydantic import Field, PositiveFloat, model_validator

from common.agents.actor_critic import ActorCritic, ActorCriticConfig
from common.agents.losses.offline_losses import exp_weight, softmax_weight
from common.agents.losses.values import critic_loss, least_value, td_target, weighted_mean
from common.agents.machinery.gradient_step import Batch, descend, discount_of, measure_td_error, track
from common.agents.machinery.update import Results
from common.agents.networks.batch_renorm import frozen_statistics
from common.agents.networks.layers import Observed
from common.agents.networks.policies import GaussianConfig, GaussianPolicy
from common.spaces import from_columns


class AdvantageWeightedConfig(ActorCriticConfig, GaussianConfig):
    """The settings that AWAC and IQL share."""

    inv_lambda: PositiveFloat = Field(
        10.0, description="How strongly better actions are preferred; near 0, all actions are about equally likely."
    )
    exp_adv_max: PositiveFloat = Field(100.0, description="The greatest weight of an action; not with adv_softmax.")
    adv_softmax: bool = Field(
        False,
        description="Whether the weights of actions are divided by their mean in the batch instead of being limited.",
    )

    @model_validator(mode="after")
    def _one_limit(self) -> AdvantageWeightedConfig:
        if self.adv_softmax:
            self.refuse_beside("adv_softmax: true", "exp_adv_max", reason="weights of a softmax have no limit")
        return self


class AdvantageWeighted(ActorCritic):
    """A Gaussian policy imitates the batch's actions, each weighted by the exponential of its advantage.

    The subclass defines the advantage of an action, and the value from which critics bootstrap.

    Arguments and errors are those of ``ActorCritic``; params: see the subclass's ``Config``.
    """

    config: AdvantageWeightedConfig
    actor: GaussianPolicy

    @abc.abstractmethod
    def _advantage(self, obs: Observed, action: torch.Tensor) -> torch.Tensor:
        """How much better actions ``[B, A]`` are than the policy, ``[B]``."""

    @abc.abstractmethod
    def _next_value(self, next_obs: Observed) -> torch.Tensor:
        """The value ``[B]`` of the next observations."""

    def _make_actor(self, n_dims: int) -> GaussianPolicy:
        return GaussianPolicy(self._make_network(self._actor_leaves, n_dims), n_dims, self.config)

    def _explore(self, obs: Observed, noise: torch.Tensor | None = None) -> torch.Tensor:
        return self.actor.sample(obs, self._generator, noise)

    def _improve_critics(self, batch: Batch) -> Results:
        config = self.config
        with torch.no_grad(), frozen_statistics(*self.nets.values()):
            reward, value = batch["reward"] * config.reward_scale, self._next_value(from_columns("next_obs", batch))
            discount = discount_of(batch, config.discount_factor)
            target = td_target(reward, batch["terminated"], value, discount)  # [B]
        q = self.critics(from_columns("obs", batch), batch["action"])  # [N, B]
        loss = critic_loss(config.critic_loss, q, target.expand_as(q), batch.get("weight"))
        descend(loss, self._critics_optimizer, config.max_grad_norm)
        return {"loss_critic": loss.detach(), "q_mean": q.detach().mean()} | measure_td_error(batch, q, target)

    def _improve_actor(self, batch: Batch) -> Results:
        config, obs, action = self.config, from_columns("obs", batch), batch["action"]
        with torch.no_grad(), frozen_statistics(*self.nets.values()):
            advantage = self._advantage(obs, action)  # [B]
        if config.adv_softmax:
            weight = softmax_weight(advantage, config.inv_lambda)  # [B]
        else:
            weight = exp_weight(advantage, config.inv_lambda, config.exp_adv_max)
        log_prob = self.actor.log_prob(obs, action)  # [B]
        loss = weighted_mean(-weight * log_prob, batch.get("weight"))
        descend(loss, self._actor_optimizer, config.max_grad_norm)
        track(self.critics_tgt, self.critics, config.tau)
        return {"loss_actor": loss.detach(), "adv_mean": advantage.mean(), "log_prob": log_prob.detach().mean()}


class AWACConfig(AdvantageWeightedConfig):
    """``agent.params`` of ``AWAC``."""


class AWAC(AdvantageWeighted):
    """Critics value the policy's next action; an action's advantage is its value minus that of the likeliest action.

    Arguments and errors are those of ``ActorCritic``; params: see ``AWACConfig``.
    """

    Config = AWACConfig
    config: AWACConfig

    def _next_value(self, next_obs: Observed) -> torch.Tensor:
        return least_value(self.critics_tgt(next_obs, self.actor.sample(next_obs, self._generator)))

    def _advantage(self, obs: Observed, action: torch.Tensor) -> torch.Tensor:
        q, value = self.critics(obs, action), self.critics(obs, self.actor.greedy(obs))  # [N, B]
        return least_value(q) - least_value(value)
