"""IMPALA: an actor-critic that learns from each step of its actors once, corrected by V-trace (arXiv:1802.01561).

Actors are always a little behind the learner: a step was taken by an older policy mu than the policy pi that learns
from it. Actors record ``log mu(a|x)`` beside each action, and V-trace weighs each step by the ratio of the two.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from common.agents import agent_settings
from common.agents.losses.sequence_losses import masked_loss, masked_mean, vtrace
from common.agents.machinery.gradient_step import Batch, draw
from common.agents.machinery.update import Results, Update
from common.agents.networks.layers import flatten_time
from common.agents.policy_gradient import LOG_PROB, PolicyGradientAgent, PolicyGradientConfig
from common.data import Record
from common.errors import ConfigError
from common.interfaces import EnvSpec, ReplayBuffer
from common.plugins.part_config import PluginConfig
from common.spaces import from_columns


class IMPALAConfig(PolicyGradientConfig):
    """``agent.params`` of ``IMPALA``."""

    units: tuple[PositiveInt, ...] = Field((256, 256), description="The width of each hidden layer of the network.")
    network: PluginConfig | None = Field(
        None,
        description="Your own network for policy and baseline together; it is called with in_shape, out_dim and "
        "params. null: a network with the layers of units, above convolutions for each picture.",
    )
    lr: agent_settings.LearningRate = 6e-4
    batch_size: agent_settings.BatchSequences = 32
    correction: Literal["vtrace", "none"] = Field(
        "vtrace",
        description="Whether targets are corrected for changes of the policy since a step was taken: vtrace, or none.",
    )
    rho_bar: PositiveFloat = Field(
        1.0, description="The greatest ratio of probabilities in each step's own error (rho-bar of V-trace)."
    )
    c_bar: PositiveFloat = Field(
        1.0,
        description="The greatest ratio of probabilities by which a later error counts in earlier steps (c-bar of "
        "V-trace).",
    )
    max_grad_norm: agent_settings.GradNormLimit = 40.0

    @model_validator(mode="after")
    def _bounds_fit(self) -> IMPALAConfig:
        if self.correction == "none":
            self.refuse_beside("correction: none", "rho_bar", "c_bar", reason="it bounds the ratios of V-trace")
        return self


class IMPALA(PolicyGradientAgent):
    """A policy and a baseline in one network, learnt from sequences, each of which is drawn once.

    The replay is a queue (``learner.replay.queue:QueueReplay``) of ``learner.views.sequences:Sequences`` whose
    ``period`` is their ``length``. For arguments and errors see ``PolicyGradientAgent``.
    """

    Config = IMPALAConfig
    config: IMPALAConfig

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self._learn = Update(self._learn_from, self.nets, captured=self._captured)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        batch = draw(buffer, self.config.batch_size, self.device)
        if "mask" not in batch:
            raise ConfigError(
                "replay.view: IMPALA learns from sequences; set target: Sequences, with period "
                f"and length of the same number; found the columns {', '.join(sorted(batch))}"
            )
        results = self._learn(self._normalize(batch))
        age = self._opt_steps - masked_mean(batch["version"].float(), batch["mask"])
        self._opt_steps += 1
        return {**results, "version_age": age}

    def _learn_from(self, batch: Batch) -> Results:
        """One gradient step on B sequences of L steps."""
        config, mask, weight = self.config, batch["mask"], batch.get("weight")
        shape = mask.shape  # [B, L]
        outputs, value = self.policy_net(flatten_time(from_columns("obs", batch)))  # Of B (L + 1) observations.
        value = value.view(shape[0], -1)  # [B, L + 1]
        outputs = outputs.view(*value.shape, -1)[:, :-1].flatten(0, 1)  # [B L, K]
        log_prob = self.actions.log_prob(outputs, self._choice(batch)).view(shape)
        entropy = masked_loss(self.actions.entropy(outputs).view(shape), mask)
        # The policy has learnt since it acted: V-trace corrects the targets by how likely it would act so today.
        log_ratio = log_prob.detach() - batch[LOG_PROB.name]
        is_corrected = config.correction == "vtrace"
        targets = vtrace(
            log_ratio if is_corrected else torch.zeros_like(log_ratio),
            batch["reward"] * config.reward_scale,
            config.discount_factor * (~batch["terminated"]).float(),
            value.detach(),
            mask,
            rho_bar=config.rho_bar if is_corrected else 1.0,
            c_bar=config.c_bar if is_corrected else 1.0,
        )
        policy_loss = -masked_loss(targets.advantages * log_prob, mask, weight)
        value_loss = 0.5 * masked_loss((targets.values - value[:, :-1]).square(), mask, weight)
        results = self._descend(policy_loss, value_loss, entropy, value[:, :-1], mask)
        return results | {"ratio_mean": masked_mean(log_ratio.exp().clamp(max=config.rho_bar), mask)}
