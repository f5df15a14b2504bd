"""The replay memory's part of the configuration."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from common.config.discount import NAME as DISCOUNT
from common.config.discount import discount_of
from common.errors import ConfigError
from common.plugins.part_config import PluginConfig
from common.settings import Settings

MIN_RATIO, MAX_RATIO = 1e-6, 1e6
"""The least and the largest replay ratio (steps drawn per step inserted). Beyond them one side would wait forever."""
MAX_CAPACITY: Final = 1 << 32
"""Rows; links between them are offsets of 32 bits."""
MAX_SOURCES: Final = 255
Unit = Annotated[float, Field(ge=0, le=1)]


class PrioritizedConfig(Settings):
    """Proportional prioritised replay (arXiv:1511.05952)."""

    alpha: Unit = Field(0.6, description="The exponent of the TD error in a draw's priority; 0 draws uniformly.")
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


class StalenessConfig(Settings):
    """Weights of draws by the age of the policy that took their steps."""

    half_age: PositiveFloat = Field(
        description="The age at which a draw weighs half, in opt steps between the model that acted and the newest one "
        "that has acted: the loss of a draw is multiplied by 1 / (1 + age / half_age)."
    )


VIEW_ARGUMENTS: Final = frozenset({"schema", "stack", "discount_factor", "make_env"})
"""The arguments that the system provides to a view that takes them."""


class ViewConfig(PluginConfig):
    """How batches are assembled from rows."""

    target: str = Field(
        "learner.views.transitions:Transitions",
        description="The view, as module:attr. It is built with those of schema, stack, discount_factor and make_env "
        "that it takes, and with params. Self-contained items of a step processor need none.",
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="Further keyword arguments for the target, such as n for n-step transitions."
    )


class SourceConfig(Settings):
    """A dataset from which a share of every batch is drawn."""

    dataset: str = Field(
        description="A Minari dataset by its name, or the path of a run, of which the replay is taken."
    )
    share: Annotated[float, Field(gt=0, lt=1)] = Field(description="The share of each batch that comes from it.")


class ReplayConfig(Settings):
    """The replay memory and the ratio at which it is used."""

    GONE: ClassVar = {"frames_per_item": "each frame is stored once now, as a row of its own; remove the key"}

    capacity: PositiveInt = Field(
        100_000,
        le=MAX_CAPACITY,
        description="The number of rows that are kept; a new row overwrites the oldest. An episode has a row for each "
        "step, and one more for its last observation.",
    )
    samples_per_insert: Annotated[float | None, Field(ge=MIN_RATIO, le=MAX_RATIO)] = Field(
        None,
        description="The replay ratio: steps drawn per step inserted. Training waits for steps and actors wait for "
        "training to keep it; null lets both run freely, as border does.",
    )
    error_buffer: PositiveFloat | None = Field(
        None,
        description="By how many drawn steps training may be ahead of the replay ratio or behind it; null takes a "
        "tenth of what may be drawn for the steps of the warm-up.",
    )
    prioritized: PrioritizedConfig | None = Field(
        None, description="Draws by TD errors; {} takes the defaults, null draws uniformly."
    )
    staleness: StalenessConfig | None = Field(
        None,
        description="Weighs draws by the age of the policy that took their steps; with prioritized, both weights are "
        "multiplied. Null: by nothing.",
    )
    target: str | None = Field(
        None,
        description="A replay buffer of your own, as module:attr, built with memory, view, seed and params, or "
        "learner.replay.queue:QueueReplay; null draws uniformly, or as prioritized says.",
    )
    params: dict[str, Any] = Field(default_factory=dict, description="Further keyword arguments of target.")
    view: ViewConfig = Field(
        ViewConfig(), description="What is drawn: transitions, sequences, or what a view of your own assembles."
    )
    sources: dict[Annotated[str, Field(pattern=r"^[\w-]+$")], SourceConfig] = Field(
        default_factory=dict,
        max_length=MAX_SOURCES,
        description="By name, datasets from which shares of every batch are drawn; the rest is drawn from the rows of "
        "the actors. Batches then have a column source: 0 for the actors, 1 for the first dataset.",
    )
    resident: bool = Field(
        False,
        description="Keeps a copy of all rows in the memory of trainer.device, and gathers batches there.",
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

    @model_validator(mode="after")
    def _leaves_a_share_to_the_actors(self) -> ReplayConfig:
        total = sum(source.share for source in self.sources.values())
        if total >= 1:
            raise ValueError(f"sources: expected shares of less than 1 together, found {total:g}")
        return self

    def check(self, agent: PluginConfig) -> None:
        """Check the parts of this section and their parameters.

        Raises:
            ConfigError, PluginError: naming the place and what was expected.
        """
        if self.own is not None:
            self.own.check("replay", frozenset({"memory", "view", "seed"}))
        self.view.check("replay.view", frozenset(), optional=VIEW_ARGUMENTS)
        if DISCOUNT in self.view.params and (gamma := discount_of(agent)) is not None:
            raise ConfigError(
                f"replay.view.params.{DISCOUNT}: remove it, for a view takes {gamma:g}, the agent's; "
                f"agent.params.{DISCOUNT} changes it"
            )
