"""Soft actor-critic (arXiv:1801.01290) with an entropy coefficient that adjusts itself (arXiv:1812.05905)."""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import torch
from pydantic import Field, PositiveFloat, model_validator
from torch import nn

from common.agents.bootstrapping import Bootstrapping, BootstrappingConfig
from common.agents.entropy import EntCoefConfig, EntropyCoef, ent_coef_loss, soft_value, squash_lstd, squashed_gaussian
from common.agents.losses.offline_losses import conservative_loss
from common.agents.machinery.gradient_step import Batch, descend, track
from common.agents.machinery.optimizers import build_optimizer
from common.agents.machinery.update import Results
from common.agents.networks.batch_renorm import frozen_statistics
from common.agents.networks.critics import Returns
from common.agents.networks.layers import Observed, repeat
from common.agents.networks.policies import GaussianConfig
from common.agents.noise import ActionNoise, LaneNoise, StateDependentActor, StateDependentNoise
from common.interfaces import EnvSpec

SAMPLES: Final = 10
"""How many actions of each kind conservative Q-learning values for an item, as its authors' code does."""


class SACConfig(EntCoefConfig, GaussianConfig, BootstrappingConfig):
    """``agent.params`` of ``SAC``."""

    ent_coef_lr: PositiveFloat | None = Field(
        None, description="The learning rate of the entropy coefficient; null takes lr."
    )
    min_lstd: float = Field(-20.0, description="The least logarithm of the policy's standard deviation.")
    lstd_limits: Literal["clamp", "tanh"] = Field(
        "clamp",
        description="How the logarithm of the standard deviation is kept between min_lstd and max_lstd: clamp cuts "
        "it off; tanh bends it (FastSAC).",
    )
    target_std: PositiveFloat | None = Field(
        None,
        description="Instead of target_entropy: the standard deviation of a Gaussian of this entropy, before tanh. It "
        "means the same for any number of dimensions; FlashSAC takes 0.15.",
    )
    exploration_noise: ActionNoise | None = Field(
        None,
        description="The noise with which actors sample the policy, by kind: gaussian, ou, pink or repeated; with std: "
        "1 it is as large as the policy says. null: independent noise in each step.",
    )
    state_dependent_noise: StateDependentNoise | None = Field(
        None,
        description="Noise of the policy that is a function of the observation (gSDE); null: independent noise in "
        "each step.",
    )
    conservatism: PositiveFloat | None = Field(
        None,
        description="Lets the critics value actions lower that are not in a dataset: the weight of CQL's loss beside "
        "the loss of the values; its authors take 5 or 10. An update takes several times as long, since 30 actions of "
        "each item are valued. null: none.",
    )

    @model_validator(mode="after")
    def _one_target(self) -> SACConfig:
        if self.target_std is not None:
            self.refuse_beside("target_std", "target_entropy", reason="both say which entropy the policy keeps")
        if not self.auto_ent_coef:
            self.refuse_beside("auto_ent_coef: false", "target_std", reason="a fixed coefficient has no target")
        return self

    @model_validator(mode="after")
    def _one_noise(self) -> SACConfig:
        if self.exploration_noise is not None and self.state_dependent_noise is not None:
            raise ValueError("give exploration_noise or state_dependent_noise, not both")
        return self


class SAC(Bootstrapping):
    """A Gaussian policy, squashed by tanh, whose entropy is rewarded.

    Arguments and errors are those of ``ActorCritic``; params: see ``SACConfig``.
    """

    Config = SACConfig
    config: SACConfig

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        config = self.config
        n_dims, target = self.action_scale.size, config.target_entropy
        if config.target_std is not None:  # The entropy of a Gaussian, whose dimensions are independent.
            target = n_dims * math.log(config.target_std * math.sqrt(2 * math.pi * math.e))
        self.target_entropy = -float(n_dims) if target is None else target
        self.ent_coef = EntropyCoef(config.ent_coef, learned=config.auto_ent_coef).to(self.device)
        self.nets["ent_coef"] = self.ent_coef
        self._ent_coef_optimizer = build_optimizer(
            self.ent_coef.parameters(), config.ent_coef_lr or config.lr, config.optimizer
        )
        noise, size = config.exploration_noise, n_dims
        if isinstance(self.actor, StateDependentActor) and config.state_dependent_noise is not None:
            noise, size = config.state_dependent_noise.process(), self.actor.lstd.numel()
        self._action_noise = None if noise is None else LaneNoise(noise, size, self._generator, self.device)

    def _make_actor(self, n_dims: int) -> nn.Module:
        gsde = self.config.state_dependent_noise
        if gsde is None:
            return self._make_network(self._actor_leaves, 2 * n_dims)
        return StateDependentActor(self._make_network(self._actor_leaves, gsde.features), n_dims, gsde)

    def _policy_at(self, obs: Observed) -> tuple[torch.Tensor, torch.Tensor]:
        """The Gaussian before tanh: means and logarithms of standard deviations, ``[n, A]`` both."""
        mean, log_std = self.actor(obs).chunk(2, dim=1)
        limits = self.config.min_lstd, self.config.max_lstd
        return mean, squash_lstd(log_std, *limits) if self.config.lstd_limits == "tanh" else log_std.clamp(*limits)

    def _sample_policy(self, obs: Observed) -> tuple[torch.Tensor, torch.Tensor]:
        """Random actions ``[n, A]`` of the policy and their log-probabilities ``[n]``."""
        mean, log_std = self._policy_at(obs)
        return squashed_gaussian(mean, log_std, self._noise(mean))

    def _critics_loss(
        self, outputs: torch.Tensor, target: Returns, batch: Batch, obs: Observed, next_obs: Observed
    ) -> torch.Tensor:
        loss, weight = super()._critics_loss(outputs, target, batch, obs, next_obs), self.config.conservatism
        if weight is None:
            return loss
        q = self.config.critic.value(outputs)  # [N, B]
        return loss + weight * conservative_loss(self._value_samples(obs, next_obs), q, batch.get("weight"))

    def _value_samples(self, obs: Observed, next_obs: Observed) -> torch.Tensor:
        """Values of sampled actions less the logarithms of their densities, ``[N, 3 * SAMPLES, B]``.

        A third is uniform, a third the policy's after these observations, a third after the next ones; all are valued
        at these observations.
        """
        with torch.no_grad(), frozen_statistics(*self.nets.values()):
            action, log_prob = self._sample_policy(repeat(obs, SAMPLES))
            next_action, next_log_prob = self._sample_policy(repeat(next_obs, SAMPLES))
            share = torch.rand(action.shape, generator=self._generator, device=self.device)
        uniform = torch.full_like(log_prob, -math.log(2) * action.shape[1])  # The density is 1/2 in each dimension.
        density = torch.cat((uniform, log_prob, next_log_prob))  # [3 * SAMPLES * B]
        with frozen_statistics(self.critics):
            q = self.critics(repeat(obs, 3 * SAMPLES), torch.cat((2 * share - 1, action, next_action)))
        return (q - density).unflatten(1, (3 * SAMPLES, -1))  # type: ignore[no-any-return]

    def _explore(self, obs: Observed, noise: torch.Tensor | None = None) -> torch.Tensor:
        mean, log_std = self._policy_at(obs)
        if noise is None:
            noise = self._noise(mean) if self._action_noise is None else self._action_noise.draw(len(mean))
        if isinstance(self.actor, StateDependentActor):
            noise = self.actor.noise(obs, noise)
        return squashed_gaussian(mean, log_std, noise)[0]

    def _next_action(self, next_obs: Observed) -> tuple[torch.Tensor, torch.Tensor | None]:
        action, log_prob = self._sample_policy(next_obs)
        return action, self.ent_coef() * log_prob

    def _improve_critics(self, batch: Batch) -> Results:
        results = super()._improve_critics(batch)
        if self.config.targets:
            track(self.critics_tgt, self.critics, self.config.tau)
        return results

    def _improve_actor(self, batch: Batch) -> Results:
        obs = self._seen_by_actor(batch)
        ent_coef = self.ent_coef().detach()
        action, log_prob = self._sample_policy(obs)
        q = self._values_to_follow(obs, action)
        loss = self._imitate(-soft_value(q, log_prob, ent_coef).mean(), q, action, batch)  # arXiv:1812.05905, 7
        descend(loss, self._actor_optimizer, self.config.max_grad_norm)
        log_prob = log_prob.detach()
        if self.config.auto_ent_coef:
            descend(ent_coef_loss(self.ent_coef.log, log_prob, self.target_entropy), self._ent_coef_optimizer)
        return {"loss_actor": loss.detach(), "ent_coef": ent_coef, "entropy": -log_prob.mean()}
