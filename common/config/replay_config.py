"""The replay memory's part of the configuration."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from common.plugins.part_config import PluginConfig
from common.settings import Settings

MIN_RATIO, MAX_RATIO = 1e-6, 1e6
"""The least and the largest replay ratio (items drawn per item inserted). Beyond them one side would wait forever."""
Unit = Annotated[float, Field(ge=0, le=1)]


class PrioritizedConfig(Settings):
    """Proportional prioritised replay (arXiv:1511.05952)."""

    alpha: Unit = Field(0.6, description="The exponent of the TD error in an item's priority; 0 draws uniformly.")
    beta_0: Unit = Field(0.4, description="Beta at the first opt step: how far weights correct the bias of the draws.")
    beta_final: Unit = Field(1.0, description="Beta after n_opts_final updates; 1 corrects the bias fully.")
    n_opts_final: PositiveInt | None = Field(
        None,
        description="The number of priority updates over which beta goes linearly from beta_0 to beta_final; null "
        "takes trainer.max_opts.",
    )
    normalize: Literal["all", "batch"] = Field(
        "all",
        description="all: weights are divided by the largest weight in the replay; batch: by the largest in the batch.",
    )


class ReplayConfig(Settings):
    """The replay memory and the ratio at which it is used."""

    GONE: ClassVar = {"frames_per_item": "each frame is stored once now, as a row of its own; remove the key"}

    capacity: PositiveInt = Field(
        100_000, description="The number of items that are kept; a new item overwrites the oldest."
    )
    samples_per_insert: Annotated[float | None, Field(ge=MIN_RATIO, le=MAX_RATIO)] = Field(
        None,
        description="The replay ratio: items drawn per item inserted. Training waits for items and actors wait for "
        "training to keep it; null lets both run freely, as border does.",
    )
    error_buffer: PositiveFloat | None = Field(
        None,
        description="By how many drawn items training may be ahead of the replay ratio or behind it; null takes a "
        "tenth of what may be drawn for the items of the warm-up.",
    )
    prioritized: PrioritizedConfig | None = Field(
        None, description="Draws items by their TD errors; {} takes the defaults, null draws uniformly."
    )
    target: str | None = Field(
        None,
        description="A replay buffer of your own, as module:attr, built with memory, seed and params; null draws "
        "uniformly, or as prioritized says.",
    )
    params: dict[str, Any] = Field(default_factory=dict, description="Further keyword arguments of target.")
    resident: bool = Field(
        False,
        description="Keeps a copy of all items in the memory of trainer.device, and gathers batches there.",
    )

    @property
    def own(self) -> PluginConfig | None:
        """The user's own replay buffer; None if the configuration names none."""
        return PluginConfig(target=self.target, params=self.params) if self.target is not None else None

    @model_validator(mode="after")
    def _names_one_buffer(self) -> ReplayConfig:
        if self.target is not None and self.prioritized is not None:
            raise ValueError("target and prioritized both name a replay buffer: leave out one of them")
        if self.target is None and self.params:
            raise ValueError("params are those of target, which is null")
        return self

    def check(self, agent: PluginConfig) -> None:
        """Check the parts of this section and their parameters.

        Raises:
            ConfigError, PluginError: naming the place and what was expected.
        """
        if self.own is not None:
            self.own.check("replay", frozenset({"memory", "seed"}))
