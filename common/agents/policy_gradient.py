"""The base class of agents that learn a policy by its own gradient, from steps whose probabilities actors recorded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import nn

from common.agents import agent_settings
from common.agents.configured_agent import ConfiguredAgent, OneNetworkConfig
from common.agents.losses.sequence_losses import masked_mean
from common.agents.machinery.gradient_step import Batch, descend
from common.agents.machinery.optimizers import build_optimizer
from common.agents.machinery.update import Results
from common.agents.networks.action_distributions import Categoricals, make_distribution
from common.agents.networks.discrete_actions import AllowedActions
from common.agents.networks.encoders import LeafSpaces
from common.agents.networks.layers import Observed
from common.agents.networks.policies import GaussianConfig, LikeliestAction, PolicyAndBaseline
from common.data import Array, Column, Items, Leaves
from common.interfaces import EnvSpec

LOG_PROB = Column.of("log_prob", np.float32)
"""Logarithm of the probability, or of its density, with which the policy that acted chose the action."""
CHOICE = "choice"
"""The column of a policy's choices ``[D]``, if actions do not tell them: Gaussian actions before they are clipped, in
units of half the space's width, and beside them the numbers of discrete values."""


class PolicyGradientConfig(OneNetworkConfig, GaussianConfig):
    """The settings that these agents share."""

    feature_dim: agent_settings.PictureFeatures = 256
    normalize_rewards: agent_settings.NormalizeRewards = False
    lr: agent_settings.LearningRate
    discount_factor: agent_settings.DiscountFactor = 0.99
    reward_scale: agent_settings.RewardScale = 1.0
    baseline_cost: PositiveFloat = Field(
        0.5, description="The weight of the baseline's loss; the policy's loss has the weight 1."
    )
    entropy_cost: NonNegativeFloat = Field(0.01, description="The weight of the policy's entropy, which is rewarded.")
    max_grad_norm: agent_settings.GradNormLimit = None


class PolicyGradientAgent(ConfiguredAgent):
    """A policy and a baseline that act, record the log-probability of each action, and learn from each step once.

    A subclass sets ``Config`` and, in its ``__init__``, the updates; it learns in ``opt``.

    It takes ``Discrete`` or ``MultiDiscrete`` actions, ``Box`` ones of any shape with finite bounds, or a ``Dict`` or
    ``Tuple`` of such actions; components and leaves are independent of each other. Arguments and errors are those of
    ``ConfiguredAgent``.
    """

    Config: ClassVar[type[PolicyGradientConfig]]
    config: PolicyGradientConfig
    counters: ClassVar[tuple[str, ...]] = ("_opt_steps",)
    draws_once: ClassVar = True
    merges_first: ClassVar = True
    """Whether a batch is normalised by statistics that include it, see ``NormalizeBatch``."""

    def __init__(self, spec: EnvSpec, *, seed: int, **given: Any) -> None:
        super().__init__(seed=seed, **given)
        config, self._spec = self.config, spec
        self.allowed = AllowedActions(spec)
        leaves = self.allowed.leaves
        self.actions = make_distribution(
            type(self).__name__, spec.action_space, self.device, config.min_lstd, config.max_lstd
        )
        self.policy_net = self._build_policy(leaves).to(self.device)
        self._normalize_batches(leaves, rewards=config.normalize_rewards, merges_first=self.merges_first)
        self.nets = {"policy": self.policy_net, "normalizer": self.normalizer}
        self._optimizer = build_optimizer(self.policy_net.parameters(), config.lr, config.optimizer)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._act_by(
            partial(self._act, greedily=True),
            partial(self._act, greedily=False),
            lambda lanes: self.actions.draw(self._lane_random.of(lanes)),
        )
        self._extras: Items = {}

    def _build_policy(self, leaves: LeafSpaces) -> nn.Module:
        """Make the networks, from the leaves of observations to the outputs of the policy and values."""
        return PolicyAndBaseline(self.config.build(leaves, self.actions.n_outputs + 1), self.actions, self.allowed)

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Any:
        return self._record(self._infer(obs, lanes))

    def _record(self, chosen: Array) -> Leaves:
        """Keep choices and log-probabilities ``[n, D + 1]`` for ``extras``; give the actions ``[n, *action_shape]``."""
        choice = chosen[:, :-1]
        self._extras = {LOG_PROB.name: chosen[:, -1]}
        if not isinstance(self.actions, Categoricals):
            self._extras[CHOICE] = choice
        with torch.inference_mode():
            actions = self.actions.to_env(torch.from_numpy(choice).to(self.device))
        if isinstance(actions, dict):
            return {path: leaf.numpy(force=True) for path, leaf in actions.items()}
        return actions.numpy(force=True)

    def _act(self, obs: Observed, noise: torch.Tensor | None = None, *, greedily: bool) -> torch.Tensor:
        """Choices for n observations and, as the last of ``[n, D + 1]``, their log-probabilities; float32."""
        outputs, _ = self.policy_net(self.normalizer(obs), valued=False)
        return self._choose(outputs, noise, greedily=greedily)

    def _choose(self, outputs: torch.Tensor, noise: torch.Tensor | None, *, greedily: bool) -> torch.Tensor:
        """Choices from the policy's outputs ``[n, K]``, and their log-probabilities, as ``_act`` gives them."""
        choice = self.actions.likeliest(outputs) if greedily else self.actions.sample(outputs, self._generator, noise)
        return torch.cat((choice.float(), self.actions.log_prob(outputs, choice)[:, None]), dim=1)

    def extra_columns(self) -> Sequence[Column]:
        if isinstance(self.actions, Categoricals):
            return (LOG_PROB,)
        return (LOG_PROB, Column.of(CHOICE, np.float32, (self.actions.n_dims,), self.actions.domain))

    def extras(self) -> Items:
        return self._extras

    def _choice(self, batch: Batch) -> torch.Tensor:
        """The choices that were made in B sequences of L steps, ``[B L, D]``."""
        is_there = batch["mask"].flatten() if "mask" in batch else None
        if isinstance(self.actions, Categoricals):
            return self.actions.from_env(batch["action"].flatten(0, 1), is_there)
        choice = batch[CHOICE].flatten(0, 1)
        return choice if is_there is None else choice.masked_fill(~is_there[:, None], 0)

    def _descend(
        self,
        policy_loss: torch.Tensor,
        value_loss: torch.Tensor,
        entropy: torch.Tensor,
        value: torch.Tensor,
        counts: torch.Tensor,
    ) -> Results:
        """Take a gradient step down the losses, scalars; the results have the mean of the values that count."""
        loss = policy_loss + self.config.baseline_cost * value_loss - self.config.entropy_cost * entropy
        return descend(loss, self._optimizer, self.config.max_grad_norm) | {
            "loss_policy": policy_loss.detach(),
            "loss_baseline": value_loss.detach(),
            "entropy": entropy.detach(),
            "value_mean": masked_mean(value.detach(), counts),
        }

    def policy(self) -> nn.Module:
        return nn.Sequential(self.normalizer, LikeliestAction(self.policy_net, self.actions))
