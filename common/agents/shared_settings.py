"""Settings that several families of agents have, each written once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt

ShiftPixels = Annotated[
    NonNegativeInt,
    Field(description="Pixels by which pictures are shifted at random in updates, at most (DrQ takes 4); 0 does not."),
]
NormalizeObservations = Annotated[
    bool,
    Field(description="Floats in observations are given the mean 0 and the variance 1 of those that are drawn."),
]
NormalizeRewards = Annotated[
    bool,
    Field(
        description="Rewards are divided by the deviation of the discounted return; needs a column "
        "info/discounted_return, see common.envs.wrappers:discounted_return."
    ),
]
