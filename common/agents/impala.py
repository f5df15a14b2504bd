"""IMPALA: an actor-critic that learns from each step of its actors once, corrected by V-trace (arXiv:1802.01561).

Actors are always a little behind the learner: a step was taken by an older policy mu than the policy pi that learns
from it. Actors record ``log mu(a|x)`` beside each action, and V-trace weighs each step by the ratio of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import nn

from common.agents.losses.sequences import masked_loss, masked_mean
from common.agents.losses.vtrace import baseline_loss, policy_gradient_loss, vtrace
from common.agents.network_agent import (
    Batch,
    Inference,
    LaneRandom,
    NetworkAgent,
    NormalizeBatch,
    Results,
    Update,
    build_optimizer,
    descend,
    draw,
)
from common.agents.networks.action_distributions import Categoricals, make_distribution
from common.agents.networks.encoders import select_leaves
from common.agents.networks.layers import Observed, flatten_time
from common.agents.networks.normalization import build_normalizer
from common.agents.networks.policies import GaussianConfig, LikeliestAction, PolicyAndBaseline
from common.agents.shared_settings import (
    BatchSequences,
    DiscountFactor,
    GradNormLimit,
    LearningRate,
    NormalizeObservations,
    OneNetworkConfig,
    PictureFeatures,
    RewardScale,
)
from common.data import Array, Column, Items, Leaves, Model, Record
from common.errors import ConfigError
from common.interfaces import EnvSpec, ReplayBuffer
from common.plugins.part_config import PluginConfig
from common.spaces import from_columns

LOG_PROB = Column.of("log_prob", np.float32)
"""Logarithm of the probability, or of its density, with which the policy that acted chose the action."""
CHOICE = "choice"
"""The column of a Gaussian policy's actions before they are clipped, ``[D]``, in units of half the space's width."""


class IMPALAConfig(OneNetworkConfig, GaussianConfig):
    """``agent.params`` of ``common.agents.impala:IMPALA``."""

    units: tuple[PositiveInt, ...] = Field((256, 256), description="The width of each hidden layer of the network.")
    network: PluginConfig | None = Field(
        None,
        description="Your own network for policy and baseline together; it is called with in_shape, out_dim and "
        "params. null: a network with the layers of units, above convolutions for each picture.",
    )
    feature_dim: PictureFeatures = 256
    normalize_observations: NormalizeObservations = False
    lr: LearningRate = 6e-4
    batch_size: BatchSequences = 32
    discount_factor: DiscountFactor = 0.99
    reward_scale: RewardScale = 1.0
    baseline_cost: PositiveFloat = Field(
        0.5, description="The weight of the baseline's loss; the policy's loss has the weight 1."
    )
    entropy_cost: NonNegativeFloat = Field(0.01, description="The weight of the policy's entropy, which is rewarded.")
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
    max_grad_norm: GradNormLimit = 40.0

    @model_validator(mode="after")
    def _bounds_fit(self) -> IMPALAConfig:
        if self.correction == "none":
            self.refuse_beside("correction: none", "rho_bar", "c_bar", reason="it bounds the ratios of V-trace")
        return self


class IMPALA(NetworkAgent):
    """A policy and a baseline in one network, learnt from sequences, each of which is drawn once.

    The replay is a queue (``learner.replay.queue:QueueReplay``) of ``learner.views.sequences:Sequences`` whose
    ``period`` is their ``length``.

    Args:
        spec: observations of any space, see ``common.agents.networks.encoders``; ``Discrete`` or ``MultiDiscrete``
            actions, whose components are independent of each other, or ``Box`` ones of any shape with finite bounds.
        seed: of the initial weights and of random actions.
        epsilon: not used; in train mode, actions are drawn from the policy.
        device: where the network lives.
        params: see ``IMPALAConfig``.

    Raises:
        ConfigError: a space has another type.
        PluginError: the user's own network cannot be built, or has other outputs than ``[B, out_dim]``.
    """

    Config = IMPALAConfig
    counters: ClassVar = ("_opt_steps",)
    draws_once: ClassVar = True

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        epsilon: float = 0.0,  # noqa: ARG002 - every agent is given one
        device: str = "cpu",
        **params: Any,
    ) -> None:
        self.config = config = IMPALAConfig(**params)
        self.device = torch.device(device)
        leaves = select_leaves(spec.observation_space)
        torch.manual_seed(seed)
        self.actions = make_distribution("IMPALA", spec.action_space, self.device, config.min_lstd, config.max_lstd)
        net = config.build(leaves, self.actions.n_outputs + 1)
        self.policy_net = PolicyAndBaseline(net, self.actions).to(self.device)
        self.normalizer = build_normalizer(leaves, enabled=config.normalize_observations).to(self.device)
        self.nets = {"policy": self.policy_net, "normalizer": self.normalizer}
        self._optimizer = build_optimizer(self.policy_net.parameters(), config.lr, config.optimizer)
        self._generator, self._lane_random = torch.Generator(self.device).manual_seed(seed), LaneRandom(seed)
        captured = self.captures(config)
        self._learn = Update(self._learn_from, self.nets, captured=captured)
        self._normalize = NormalizeBatch(self.normalizer, captured=captured)
        self._act_greedily = Inference(lambda obs: self._act(obs, greedily=True), self.device, captured=captured)
        self._act_exploring = Inference(
            lambda obs, *noise: self._act(obs, *noise, greedily=False),
            self.device,
            captured=captured,
            noise=lambda lanes: self.actions.draw(self._lane_random.of(lanes)),
        )
        self._extras: Items = {}
        self._opt_steps = 0

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Array:
        found = self._act_exploring(obs, lanes) if self.is_train else self._act_greedily(obs, lanes)
        choice = found[:, :-1]
        self._extras = {LOG_PROB.name: found[:, -1]}
        if not isinstance(self.actions, Categoricals):
            self._extras[CHOICE] = choice
        with torch.inference_mode():
            return self.actions.to_env(torch.from_numpy(choice).to(self.device)).numpy(force=True)

    def _act(self, obs: Observed, noise: torch.Tensor | None = None, *, greedily: bool) -> torch.Tensor:
        """Choices for n observations and, as the last of ``[n, D + 1]``, their log-probabilities; float32."""
        outputs, _ = self.policy_net(self.normalizer(obs))
        choice = self.actions.likeliest(outputs) if greedily else self.actions.sample(outputs, self._generator, noise)
        return torch.cat((choice.float(), self.actions.log_prob(outputs, choice)[:, None]), dim=1)

    def extra_columns(self) -> Sequence[Column]:
        if isinstance(self.actions, Categoricals):
            return (LOG_PROB,)
        return (LOG_PROB, Column.of(CHOICE, np.float32, (self.actions.n_dims,)))

    def extras(self) -> Items:
        return self._extras

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        batch = draw(buffer, self.config.batch_size, self.device)
        if "mask" not in batch:
            raise ConfigError(
                "replay.view: IMPALA learns from sequences; set target: learner.views.sequences:Sequences, with period "
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
        policy_loss = policy_gradient_loss(log_prob, targets.advantages, mask, weight)
        value_loss = baseline_loss(value[:, :-1], targets.values, mask, weight)
        loss = policy_loss + config.baseline_cost * value_loss - config.entropy_cost * entropy
        grad_norm = descend(loss, self._optimizer, config.max_grad_norm)
        results = {
            "loss_policy": policy_loss.detach(),
            "loss_baseline": value_loss.detach(),
            "entropy": entropy.detach(),
            "value_mean": masked_mean(value[:, :-1].detach(), mask),
            "ratio_mean": masked_mean(log_ratio.exp().clamp(max=config.rho_bar), mask),
        }
        return results if grad_norm is None else results | {"grad_norm": grad_norm}

    def _choice(self, batch: Batch) -> torch.Tensor:
        """The choices that were made in B sequences of L steps, ``[B L, D]``."""
        if isinstance(self.actions, Categoricals):
            return self.actions.from_env(batch["action"].flatten(0, 1), batch["mask"].flatten())
        return batch[CHOICE].flatten(0, 1)

    def sync_model(self, model: Model) -> None:
        super().sync_model(model)
        self._opt_steps = model.version.opt_steps

    def policy(self) -> nn.Module:
        return nn.Sequential(self.normalizer, LikeliestAction(self.policy_net))
