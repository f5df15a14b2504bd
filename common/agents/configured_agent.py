"""What crossborder's agents share: the beginning of their constructors, and settings, each written once."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import nn

from common.agents.losses.values import CriticLoss
from common.agents.network_agent import (
    Batch,
    Inference,
    LaneRandom,
    NetworkAgent,
    NormalizeBatch,
    Results,
    Update,
    UpdateConfig,
    report_td_error,
)
from common.agents.networks.encoders import LeafSpaces, build_mlp, build_network, is_own_network
from common.agents.networks.layers import Activation
from common.agents.networks.normalization import build_normalizer
from common.config.replay_config import Unit
from common.data import Array, Leaves, Model, Record
from common.interfaces import ReplayBuffer
from common.plugins.part_config import PluginConfig
from common.settings import Settings

LearningRate = Annotated[PositiveFloat, Field(description="The learning rate.")]
BatchItems = Annotated[PositiveInt, Field(description="The number of items in the batch of one update.")]
BatchSequences = Annotated[PositiveInt, Field(description="The number of sequences in the batch of one update.")]
DiscountFactor = Annotated[
    Unit, Field(description="Gamma: the weight of a reward is multiplied by it for each step into the future.")
]
RewardScale = Annotated[
    PositiveFloat, Field(description="The factor by which rewards are multiplied before the agent learns from them.")
]
GradNormLimit = Annotated[
    PositiveFloat | None,
    Field(description="The greatest norm of the gradients; larger ones are scaled down to it. null: no limit."),
]
PictureFeatures = Annotated[
    PositiveInt, Field(description="The number of features of each picture in observations, if no network is given.")
]
EncoderFeatures = Annotated[
    PositiveInt,
    Field(
        description="If a network is given, the number of its outputs; otherwise the number of features of each "
        "picture in observations."
    ),
]
Dueling = Annotated[
    bool,
    Field(
        description="Whether the last layer computes the state's value and the actions' advantages apart "
        "(dueling networks)."
    ),
]
CriticCount = Annotated[
    PositiveInt, Field(description="The number of critics; targets take the least of their values.")
]
LossOfCritics = Annotated[
    CriticLoss, Field(description="The loss of the critics' errors: smooth_l1 (Huber) or mse (mean squared error).")
]
TauOfCritics = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        description="How far the targets move towards the critics in an update of the targets; 1 copies the critics.",
    ),
]
TargetSteps = Annotated[
    PositiveInt,
    Field(
        description="The number of steps over which a target sums rewards; it is smaller near the end of a sequence."
    ),
]
MaxShare = Annotated[
    Unit,
    Field(description="The share of the greatest TD error in the priority of a sequence; their mean has the rest."),
]
ShiftPixels = Annotated[
    NonNegativeInt,
    Field(description="The most pixels by which pictures are shifted at random in updates (DrQ takes 4); 0: no shift."),
]
ActorKeys = Annotated[
    tuple[str, ...] | None,
    Field(description="The parts of a Dict or Tuple observation that the policy sees, by path; null: all parts."),
]
CriticKeys = Annotated[
    tuple[str, ...] | None,
    Field(
        description="The parts of a Dict or Tuple observation that the critics see, such as a state of the simulator "
        "that no robot can measure; null: all parts."
    ),
]
NormalizeRewards = Annotated[
    bool,
    Field(
        description="Whether rewards are divided by the standard deviation of the discounted return. It needs the "
        "column info/discounted_return (see common.envs.wrappers:discounted_return)."
    ),
]


class EntCoefConfig(Settings):
    """The settings of agents whose policy is rewarded for its entropy."""

    ent_coef: PositiveFloat = Field(
        1.0,
        description="The entropy coefficient: the weight of the entropy beside the return. With auto_ent_coef, its "
        "first value.",
    )
    auto_ent_coef: bool = Field(
        True, description="Whether the entropy coefficient is learned so that the policy keeps target_entropy."
    )
    target_entropy: float | None = Field(
        None,
        description="The entropy that the policy keeps, in nats, for actions in [-1, 1]; null: minus the number of "
        "their dimensions.",
    )

    @model_validator(mode="after")
    def _is_learned(self) -> EntCoefConfig:
        if not self.auto_ent_coef:
            reason = "a coefficient that is not learned has neither a target nor a learning rate"
            self.refuse_beside("auto_ent_coef: false", "target_entropy", "ent_coef_lr", reason=reason)
        return self


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


class NetworkConfig(AgentConfig):
    """The settings of agents whose configuration may name a network; each agent describes them in its own words."""

    units: tuple[PositiveInt, ...] = (256, 256)
    network: PluginConfig | None = None
    feature_dim: PositiveInt = 256

    def has_own_network(self) -> bool:
        return self.network is not None and is_own_network(self.network)


class OneNetworkConfig(NetworkConfig):
    """The settings of agents whose network is either made of ``units`` or the user's own, but not both."""

    @model_validator(mode="after")
    def _one_network(self) -> OneNetworkConfig:
        if self.network is not None and "units" in self.model_fields_set:
            raise ValueError("give units or network, not both: a network takes its widths as network.params")
        return self

    def build(self, leaves: LeafSpaces, out_dim: int, activation: Activation = "relu") -> nn.Module:
        """Make the user's own network, or one of ``units``, from the leaves of B observations to ``[B, out_dim]``.

        ``activation`` is that of the layers of ``units``.

        Raises:
            PluginError, ConfigError: see ``build_network``.
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
        epsilon: this actor's rung of the exploration ladder; only agents of action values use it.
        device: where the networks live.
        params: see the agent's ``Config``.

    Raises:
        ConfigError: the agent does not take the action space; it has no finite bounds, or too many joint actions; or a
            leaf of the observation space cannot be stored.
        PluginError: the user's own network cannot be built, or has other outputs than the agent needs.
    """

    Config: ClassVar[type[AgentConfig]]
    config: AgentConfig

    def __init__(self, *, seed: int, epsilon: float = 0.0, device: str = "cpu", **params: Any) -> None:
        self.config, self.device = self.Config(**params), torch.device(device)
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
        exploring: Callable[..., torch.Tensor],
        noise: Callable[[Array], Array],
    ) -> None:
        """Make ``_infer`` of two functions of observations; ``noise`` is that of ``exploring``, see ``Inference``."""
        self._act_greedily = Inference(greedily, self.device, captured=self._captured)
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
