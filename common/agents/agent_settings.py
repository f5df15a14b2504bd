"""Settings that several agents have, each described once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from common.agents.losses.values import CriticLoss
from common.config.replay_config import Unit
from common.plugins.part_config import PluginConfig

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
Tau = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        description="How far the target networks move towards the online networks in an update of the targets; 1 "
        "copies the online networks.",
    ),
]
RandomOpts = Annotated[
    NonNegativeInt,
    Field(
        description="The number of opt steps during which exploring actors take uniformly random actions. 1: until "
        "the learner begins to learn, after trainer.warmup_period steps; 0: never."
    ),
]
NetworkBelowMemory = Annotated[
    PluginConfig | None,
    Field(
        description="Your own network for observations, below each memory; it is called with in_shape, "
        "out_dim=feature_dim and params. null: a picture has convolutions, other observations are flattened; in a Dict "
        "or Tuple, each part is encoded."
    ),
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
        "column info/discounted_return, which the wrapper discounted_return reports and env.info names."
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
