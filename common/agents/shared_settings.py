"""Settings that several families of agents have, each written once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from common.agents.network_agent import UpdateConfig
from common.agents.networks.encoders import is_own_network
from common.plugins.part_config import PluginConfig

ShiftPixels = Annotated[
    NonNegativeInt,
    Field(description="The most pixels by which pictures are shifted at random in updates (DrQ takes 4); 0: no shift."),
]
NormalizeObservations = Annotated[
    bool,
    Field(
        description="Whether floats in observations are scaled to mean 0 and variance 1, by the mean and variance of "
        "the observations drawn so far."
    ),
]
NormalizeRewards = Annotated[
    bool,
    Field(
        description="Whether rewards are divided by the standard deviation of the discounted return. It needs the "
        "column info/discounted_return (see common.envs.wrappers:discounted_return)."
    ),
]


class NetworkConfig(UpdateConfig):
    """The settings of agents whose configuration may name a network; each agent describes them in its own words."""

    units: tuple[PositiveInt, ...] = (256, 256)
    network: PluginConfig | None = None
    feature_dim: PositiveInt = 256

    def has_own_network(self) -> bool:
        return self.network is not None and is_own_network(self.network)


class OneNetworkConfig(NetworkConfig):
    """The settings of agents that have either a network of ``units`` or another one, and not one above the other."""

    @model_validator(mode="after")
    def _one_network(self) -> OneNetworkConfig:
        if self.network is not None and "units" in self.model_fields_set:
            raise ValueError("give units or network, not both: a network takes its widths as network.params")
        return self
