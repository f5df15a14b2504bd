"""The replay memory's part of the configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from common.errors import ConfigError
from common.plugins import part_loading
from common.plugins.part_config import PluginConfig
from common.settings import Settings, validate

DISCOUNT: Final = "discount_factor"


def discount_of(agent: PluginConfig) -> float | None:
    """The discount factor that an agent is built with; None if the agent has no parameter ``discount_factor``.

    It is configured once, as the agent's, and views take it from there.

    Raises:
        ConfigError, PluginError: the agent cannot be loaded or does not take its parameters.
    """
    target = part_loading.load_part(agent.target)
    model = getattr(target, "Config", None)
    if isinstance(model, type) and issubclass(model, Settings):
        found = getattr(validate(model, agent.params, "agent.params"), DISCOUNT, None)
    else:
        found = agent.params.get(DISCOUNT, _default_discount(target))
    return found if isinstance(found, float | int) else None


def _default_discount(target: Callable[..., Any]) -> object:
    """The default of a callable's parameter ``discount_factor``; None if there is no such parameter."""
    try:
        parameter = inspect.signature(target).parameters.get(DISCOUNT)
    except ValueError:  # Some builtins have no signature.
        return None
    return parameter.default if parameter else None


MIN_RATIO, MAX_RATIO = 1e-6, 1e6
"""The least and the largest replay ratio (steps drawn per step inserted). Beyond them, trainer or actors would wait
practically forever."""
MAX_CAPACITY: Final = 1 << 32
"""The most rows of a replay: the links between rows are offsets of 32 bits."""
MAX_SOURCES: Final = 255
Unit = Annotated[float, Field(ge=0, le=1)]


class PrioritizedConfig(Settings):
    """Proportional prioritised replay (arXiv:1511.05952)."""

    GONE: ClassVar = {"beta_final": 1.0, "n_opts_final": None}

    alpha: Unit = Field(0.6, description="The exponent of the TD error in the priority of a row; 0 draws uniformly.")
    beta_0: Unit = Field(
        0.4,
        description="Beta at the first opt step. Beta is the exponent of the weights that correct for rows being "
        "drawn unequally often: 0 does not correct, 1 corrects fully. It rises to 1 over all updates of the run: "
        "trainer.max_opts times the agent's n_updates_per_opt.",
    )
    normalize: Literal["all", "batch"] = Field(
        "all",
        description="The weight by which all weights of a batch are divided. all: the largest in the whole replay; "
        "batch: the largest in the batch.",
    )


VIEW_ARGUMENTS: Final = frozenset({"schema", "stack", "discount_factor", "make_env"})
"""The arguments that the system provides to a view that takes them."""


class ViewConfig(PluginConfig):
    """How batches are assembled from rows."""

    target: str = Field(
        "learner.views.transitions:Transitions",
        description="The class of the view, written as module:attr. It is called with params and with those of "
        "schema, stack, discount_factor and make_env that it accepts. Self-contained items of a step processor need "
        "no view.",
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="Further keyword arguments for the target, such as n for n-step transitions."
    )


class SourceConfig(Settings):
    """A dataset, the interventions of people, or both, from which a share of every batch is drawn."""

    dataset: str | None = Field(
        None,
        description="The place of the episodes: .npz or .parquet files, a LeRobot or Minari dataset, or an earlier "
        "run (see docs/demonstrations.md). null: no dataset, only interventions.",
    )
    interventions: bool = Field(
        False,
        description="Whether the source also has the actors' rows in which somebody intervened (env.intervention). "
        "Dataset and interventions are drawn in proportion to their numbers of rows. Until there are interventions, "
        "the dataset fills the share; without a dataset, all rows of the actors do.",
    )
    share: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="The share of each batch that is drawn from this source."
    )

    @model_validator(mode="after")
    def _has_rows(self) -> SourceConfig:
        if self.dataset is None and not self.interventions:
            raise ValueError("expected a dataset, interventions: true, or both, found neither")
        return self


class ReplayConfig(Settings):
    """The replay memory and the ratio at which it is used."""

    GONE: ClassVar = {"staleness": None}

    capacity: PositiveInt = Field(
        100_000,
        le=MAX_CAPACITY,
        description="The number of rows that the replay keeps; a new row overwrites the oldest. An episode has a row "
        "for each step, and one more for its last observation.",
    )
    samples_per_insert: Annotated[float | None, Field(ge=MIN_RATIO, le=MAX_RATIO)] = Field(
        None,
        description="The replay ratio: the number of steps drawn for each step inserted. The trainer waits for "
        "steps, and actors wait for the trainer, to keep it. null: nobody waits, as in border.",
    )
    error_buffer: PositiveFloat | None = Field(
        None,
        description="How far training may be ahead of the replay ratio or behind it, in drawn steps, before the "
        "trainer or the actors wait. null: a tenth of warmup_period * samples_per_insert, at least 1.",
    )
    prioritized: PrioritizedConfig | None = Field(
        None,
        description="Prioritized replay: rows with greater TD errors are drawn more often. {} takes the defaults; "
        "null draws uniformly.",
    )
    half_age: PositiveFloat | None = Field(
        None,
        description="Lets steps of old policies count less: the loss of a draw is multiplied by "
        "1 / (1 + age / half_age). The age is the number of opt steps between the model that acted and the newest "
        "model that has acted. With prioritized, both weights are multiplied. null: all ages count alike.",
    )
    target: str | None = Field(
        None,
        description="Your own replay buffer, written as module:attr, or QueueReplay, which draws each step once. It "
        "is called with memory, view, seed and params. null draws uniformly, or as prioritized says.",
    )
    params: dict[str, Any] = Field(default_factory=dict, description="Further keyword arguments for the target.")
    view: ViewConfig = Field(
        ViewConfig(),
        description="The view, which assembles batches from rows: transitions, sequences, or your own view.",
    )
    sources: dict[Annotated[str, Field(pattern=r"^[\w-]+$")], SourceConfig] = Field(
        default_factory=dict,
        max_length=MAX_SOURCES,
        description="Mixes demonstrations into every batch: by name, datasets and interventions from which a share "
        "of the batch is drawn. The rest comes from the rows of the actors. Batches then have a column source: 0 for "
        "the actors, 1 for the first source.",
    )
    resident: bool = Field(
        False,
        description="Makes draws faster on a GPU with enough memory: a copy of all rows is kept in the memory of "
        "trainer.device, and batches are gathered there.",
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
            raise ValueError("params belong to target, which is null")
        return self

    @model_validator(mode="after")
    def _leaves_a_share_to_the_actors(self) -> ReplayConfig:
        if "actors" in self.sources:
            raise ValueError("sources.actors: expected another name: in metrics, this name means the actors' rows")
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
                f"replay.view.params.{DISCOUNT}: remove it: a view uses the agent's discount factor, {gamma:g}; "
                f"agent.params.{DISCOUNT} changes it"
            )
