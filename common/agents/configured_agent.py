"""The base of crossborder's agents: an agent with a ``Config``, and the opt step of those that draw batches.

``agent_settings`` has settings of several agents, and ``network_agent`` what is published and saved.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import nn

from common.agents import agent_settings
from common.agents.machinery.gradient_step import Batch, report_td_error
from common.agents.machinery.lane_states import LaneRandom
from common.agents.machinery.update import Inference, Results, Update, UpdateConfig
from common.agents.network_agent import NetworkAgent
from common.agents.networks.encoders import LeafSpaces, build_mlp, build_network, is_own_network
from common.agents.networks.layers import Activation
from common.agents.networks.normalization import NormalizeBatch, build_normalizer
from common.data import Array, Leaves, Model, Record
from common.interfaces import ReplayBuffer
from common.plugins.part_config import PluginConfig
from common.settings import validate


class AgentConfig(UpdateConfig):
    """The settings of every agent."""

    normalize_observations: bool = Field(
        False,
        description="Whether floats in observations are scaled to mean 0 and variance 1, by the mean and variance of "
        "the observations drawn so far.",
    )


class OffPolicyConfig(AgentConfig):
    """The settings of every ``OffPolicyAgent``."""

    n_updates_per_opt: PositiveInt = Field(
        1, description="The number of updates in one opt step, each with its own batch."
    )
    discount_factor: agent_settings.DiscountFactor = 0.99
    tau: agent_settings.Tau = 0.005
    max_grad_norm: agent_settings.GradNormLimit = None


class TransitionConfig(OffPolicyConfig):
    """The settings of every ``OffPolicyAgent`` that learns from transitions, and of R2D2."""

    random_shift: agent_settings.ShiftPixels = 0
    normalize_rewards: agent_settings.NormalizeRewards = False


class NetworkConfig(AgentConfig):
    """The settings of agents whose configuration may name a network; each agent describes them in its own words."""

    units: tuple[PositiveInt, ...] = (256, 256)
    network: PluginConfig | None = None
    feature_dim: PositiveInt = 256

    def has_own_network(self) -> bool:
        return self.network is not None and is_own_network(self.network)


class OneNetworkConfig(NetworkConfig):
    """The settings of agents whose network is either made of ``units`` or the user's own, but not both."""

    units_above_network: ClassVar[bool] = False
    """True: both may be given, since the network is below a memory, and the layers of ``units`` are above it."""

    @model_validator(mode="after")
    def _one_network(self) -> OneNetworkConfig:
        if self.network is not None and not self.units_above_network and "units" in self.model_fields_set:
            raise ValueError("give units or network, not both: a network takes its widths as network.params")
        return self

    def build(self, leaves: LeafSpaces, out_dim: int, activation: Activation = "relu") -> nn.Module:
        """Make the user's own network, or one of ``units``, from the leaves of B observations to ``[B, out_dim]``.

        ``activation`` is that of the layers of ``units``.
        """
        if self.network is None:
            return build_mlp(leaves, out_dim, self.units, self.feature_dim, activation)
        return build_network(self.network, leaves, out_dim)


class ConfiguredAgent(NetworkAgent):
    """An agent with a ``Config``, the base of crossborder's agents; its constructor seeds torch for their networks.

    Before these arguments, each agent takes ``spec``: observations of any space, see
    ``common.agents.networks.encoders``, and the actions that its class names.

    Args:
        seed: of the initial weights and of all random numbers.
        epsilon: this actor's own epsilon; only agents of action values use it.
        device: where the networks live.
        params: see the agent's ``Config``.

    Raises:
        ConfigError: a parameter is unknown or has a wrong value; the agent does not take the action space; it has no
            finite bounds, or too many joint actions; or a leaf of the observation space cannot be stored.
        PluginError: the user's own network cannot be built, or has other outputs than the agent needs.
    """

    Config: ClassVar[type[AgentConfig]]
    config: AgentConfig

    def __init__(self, *, seed: int, epsilon: float = 0.0, device: str = "cpu", **params: Any) -> None:
        self.config, self.device = validate(self.Config, params, type(self).__name__), torch.device(device)
        self._epsilon, self._lane_random = epsilon, LaneRandom(seed)
        self._captured = self.captures(self.config)
        self._opt_steps = 0  # Those of the newest model, or those of this agent if it learns.
        torch.manual_seed(seed)

    def sync_model(self, model: Model) -> None:
        super().sync_model(model)
        self._opt_steps = model.version.opt_steps

    def _normalize_batches(
        self, leaves: LeafSpaces, *, rewards: bool = False, max_return: float | None = None, merges_first: bool = True
    ) -> None:
        """Make ``normalizer``, for these leaves of observations, and ``_normalize``; see ``NormalizeBatch``."""
        enabled = self.config.normalize_observations
        normalizer = build_normalizer(leaves, enabled=enabled, rewards=rewards, max_return=max_return)
        self.normalizer = normalizer.to(self.device)
        self._normalize = NormalizeBatch(self.normalizer, captured=self._captured, merges_first=merges_first)

    def _act_by(
        self,
        greedily: Callable[..., torch.Tensor],
        exploring: Callable[..., torch.Tensor] | None = None,
        noise: Callable[[Array], Array] | None = None,
    ) -> None:
        """Make ``_infer`` of functions of observations; without ``exploring``, every action is that of ``greedily``.

        ``noise`` is that of ``exploring``, see ``Inference``.
        """
        self._act_greedily = self._act_exploring = Inference(greedily, self.device, captured=self._captured)
        if exploring is not None:
            self._act_exploring = Inference(exploring, self.device, captured=self._captured, noise=noise)

    def _infer(self, obs: Leaves, lanes: Array | None) -> Array:
        """What the functions of ``_act_by`` give for n observations, ``[n, …]``; evaluations are greedy."""
        return self._act_exploring(obs, lanes) if self.is_train else self._act_greedily(obs, lanes)


class OffPolicyAgent(ConfiguredAgent):
    """An agent whose opt step makes ``n_updates_per_opt`` updates, each from a batch that it draws.

    The subclass sets ``learn`` in its ``__init__``. Arguments and errors are those of ``ConfiguredAgent``.
    """

    config: OffPolicyConfig
    learn: Update

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        record: Record = {}
        left = self.config.n_updates_per_opt
        while left:
            for batch in self._draw_batches(buffer):
                left -= 1
                results = self.learn(batch, recorded=left == 0)
                report_td_error(buffer, batch, results)
                record |= self._finish_update(batch, results)
        self._opt_steps += 1
        return record

    @abc.abstractmethod
    def _draw_batches(self, buffer: ReplayBuffer) -> Sequence[Batch]:
        """Draw the next batches of this opt step: one, or as many as divide the number of its updates."""

    def _finish_update(self, batch: Batch, results: Results) -> Results:  # noqa: ARG002 - subclasses look at the batch
        """Do what belongs to an update after ``learn``; return the results for the record."""
        return results
