"""A sweep, which one YAML file describes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from common.config.nested import put, read_yaml
from common.config.run_config import FREE_PORTS, RunConfig, read_values
from common.errors import ConfigError
from common.settings import HomePath, Settings, validate
from crossborder.curves.learning_curve import SCORE
from crossborder.sweeps.dimensions import Choices, Dimension, parse_dimension


class ScoreConfig(Settings):
    """The number by which trials are compared; that of a trial is the interquartile mean over its seeds."""

    record: str = Field(SCORE, description="A column of metrics.csv.")
    take: Literal["last", "mean", "best"] = Field(
        "last",
        description="The value of a run that counts: last, its last one; mean, the mean of all, which rewards fast "
        "learning; best, its best one.",
    )
    direction: Literal["maximize", "minimize"] = Field(
        "maximize", description="Whether a greater number is better (maximize) or a smaller one (minimize)."
    )

    def of(self, values: list[float]) -> float:
        """The score of a run with these values, at least one."""
        if self.take == "mean":
            return math.fsum(values) / len(values)
        return values[-1] if self.take == "last" else (max if self.direction == "maximize" else min)(values)


class PruneConfig(Settings):
    """Ends a trial early if its best value so far is below the median of the earlier trials at the same step."""

    startup_trials: PositiveInt = Field(5, description="The number of first trials, which are never ended early.")
    warmup_opts: NonNegativeInt = Field(
        0, description="The opt steps of its first run after which a trial may be ended early."
    )


class SweepConfig(Settings):
    """A sweep: a trial is a choice of settings, with one run for each seed."""

    config: HomePath = Field(description="The YAML file of a run.")
    fixed: dict[str, Any] = Field(
        default_factory=dict,
        description="Values that all runs have in place of those in the file, by path, such as trainer.max_opts.",
    )
    space: dict[str, Any] = Field(
        default_factory=dict,
        description="The values to choose from, by path, such as agent.params.lr: a list, or one of uniform, log, "
        "int and log_int with [LOW, HIGH]. Without it, each seed is a trial.",
    )
    seeds: tuple[NonNegativeInt, ...] = Field((0,), min_length=1, description="The seeds of the runs of each trial.")
    sampler: Literal["tpe", "random", "grid"] = Field(
        "tpe",
        description="The way in which settings are chosen: tpe learns from earlier trials, random does not, grid "
        "tries every combination of lists.",
    )
    sampler_seed: NonNegativeInt = Field(0, description="The seed of the choices.")
    trials: PositiveInt = Field(20, description="The number of trials; a grid has one for each combination.")
    score: ScoreConfig = Field(ScoreConfig(), description="The number by which trials are compared.")
    prune: PruneConfig | None = Field(None, description="The rule by which a trial is ended early; null ends none.")
    command: Literal["sync-train", "learner-server", "offline-train"] = Field(
        "sync-train", description="The command of each run."
    )
    arguments: tuple[str, ...] = Field(
        (), description="Further arguments of the command, such as --local-actors and 2."
    )

    @field_validator("space")
    @classmethod
    def _has_dimensions(cls, space: dict[str, Any]) -> dict[str, Any]:
        for key, value in space.items():
            try:
                parse_dimension(value)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from error
        return space

    @field_validator("seeds")
    @classmethod
    def _has_different_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("expected different seeds: a run that is counted twice makes a score look more certain")
        return seeds

    @model_validator(mode="after")
    def _has_seeds_in_one_place(self) -> SweepConfig:
        if "seed" in self.space and self.seeds != (0,):
            raise ValueError("space: expected no seed beside seeds: it would be the only seed of each trial")
        return self

    @model_validator(mode="after")
    def _has_lists_of_different_values_in_a_grid(self) -> SweepConfig:
        for key, dimension in self.dimensions().items() if self.is_grid else ():
            if not isinstance(dimension, Choices):
                raise ValueError(f"sampler: grid takes lists, found a range for {key}")
            if len({*map(json.dumps, dimension.values)}) < len(dimension.values):
                raise ValueError(f"sampler: grid takes lists of different values, found a value of {key} twice")
        return self

    @property
    def is_grid(self) -> bool:
        """Whether every combination is one trial."""
        return self.sampler == "grid" or not self.space

    def dimensions(self) -> dict[str, Dimension]:
        """By path, the values to choose from."""
        return {key: parse_dimension(value) for key, value in (self.space or {"seed": self.seeds}).items()}

    @property
    def n_trials(self) -> int:
        """The number of trials in all."""
        if not self.is_grid:
            return self.trials
        return math.prod(len(each.values) for each in self.dimensions().values() if isinstance(each, Choices))

    def seeds_of(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        """The seeds of the runs of a trial with these values."""
        return (int(values["seed"]),) if "seed" in values else self.seeds


def warn_of_unequal_steps(sweep: SweepConfig) -> str:
    """Why trials would learn from different numbers of environment steps; empty if they do not, by these settings.

    With a fixed ratio of drawn to stored steps, an opt step with a larger batch needs more environment steps.
    """
    ratio, batch, budget = "replay.samples_per_insert", "agent.params.batch_size", "trainer.max_env_steps"
    config, chosen = first_config(sweep), sweep.dimensions().keys()
    if batch not in chosen or {ratio, budget} & chosen or config.trainer.max_env_steps is not None:
        return ""
    if config.replay.samples_per_insert is None:
        return ""
    return (
        f"{batch} is chosen, but {ratio} is {config.replay.samples_per_insert:g} in all trials: a trial with a larger "
        f"batch takes more environment steps, and fewer updates for each; {budget} makes their steps equal"
    )


def load_sweep(path: Path) -> SweepConfig:
    """Read a sweep's YAML file.

    Raises:
        ConfigError: the file cannot be read, or values are wrong.
    """
    return validate(SweepConfig, read_yaml(path))


def configure(path: Path, values: Mapping[str, Any]) -> RunConfig:
    """The configuration in a file with other values by path.

    Raises:
        ConfigError: a value is wrong, or there is no such setting.
    """
    found = read_values(path)
    for key, value in values.items():
        put(found, key, value)
    return validate(RunConfig, found)


def base_config(sweep: SweepConfig, chosen: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of a sweep before anything is chosen, or with chosen values by path.

    Raises:
        ConfigError: a value is wrong, or there is no such setting.
    """
    # Runs beside each other cannot listen on one port.
    ports = FREE_PORTS if sweep.command == "learner-server" else {}
    # Each run needs a directory and a mirror of its own, see docs/preemptible.md: those of the file are another run's.
    unmirrored = {"storage.mirror": None, "storage.acknowledge": "disk"}
    config = configure(sweep.config, {**unmirrored, **ports, **sweep.fixed, **(chosen or {}), "run_dir": None})
    if config.storage.mirror is not None:
        raise ConfigError("storage.mirror: expected none in a sweep, found one: each run needs a mirror of its own")
    return config


def first_config(sweep: SweepConfig) -> RunConfig:
    """A configuration of the sweep, with the first value of each setting that is chosen.

    Raises:
        ConfigError: a value is wrong, or there is no such setting.
    """
    return base_config(sweep, {key: dimension.first() for key, dimension in sweep.dimensions().items()})
