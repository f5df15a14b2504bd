"""The learning curve of one run, from its ``metrics.csv``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from common.config.nested import flatten, parse_yaml
from common.data import Array
from common.errors import ConfigError
from common.hints import nearest, nearest_path
from learner.records.csv_recorder import Row, read_numbers, read_rows

SCORE: Final = "eval_reward"
AXES: Final[Mapping[str, str]] = {"opt-steps": "opt_steps", "env-steps": "samples_total", "seconds": "seconds"}
"""The horizontal axes of a curve, and their columns. Seconds are those of training, in all lives of the run."""


@dataclass(frozen=True)
class Curve:
    """The values of one record over the course of one run."""

    run: Path
    x: Array
    """``[n]``, float64, growing strictly."""
    y: Array
    """``[n]``, float64."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The values of the run's configuration by path, such as ``agent.params.lr``; empty if it has none."""

    @property
    def name(self) -> str:
        """The name in the configuration, or the name of the directory if the configuration has none."""
        return str(self.settings.get("name", self.run.name))

    @property
    def task(self) -> str:
        """The id of the environment, or ``env.target`` if it has no id."""
        return str(self.settings.get("env.params.id", self.settings.get("env.target", "unknown")))


def read_curve(run: Path, axis: str = "env-steps", record: str = SCORE) -> Curve:
    """Read the curve of a run, which may still train.

    Rows without the record are left out, as are rows with NaN or infinity, which a run records when it diverges, and a
    last row that is not complete yet. A score that was recorded late, after rows of later steps, is put in its place.
    Of several rows at one place the last counts. A resumed run has removed the rows whose steps it took again.

    Args:
        run: a directory with ``metrics.csv`` and, if there is one, ``config.yaml``.
        axis: a key of ``AXES``.
        record: the column to read.

    Raises:
        ConfigError: there is no such run, no such record, or no row with a finite value of it, or a value is no number.
    """
    path, column = run / "metrics.csv", AXES[axis]
    try:
        columns, rows = read_rows(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{nearest_path(run)}") from error
    for key in (column, record):
        if key not in columns:
            raise ConfigError(f"{path}: expected a column {key}, found none{nearest(key, columns)}")
    points = {x: y for x, y in _points(path, rows, column, record).items() if math.isfinite(y)}
    if not points:
        others = [key for key in ("train_return", "loss") if key != record and _points(path, rows, column, key)]
        hint = f"; --record {others[0]} plots what there is" if others else ""
        raise ConfigError(f"{path}: expected rows with {record}, found none: the run has not recorded it yet{hint}")
    return Curve(run, np.array([*points]), np.array([*points.values()]), _settings(run / "config.yaml"))


def is_pruned(run: Path) -> bool:
    """Whether a run belongs to a trial that its sweep ended early, as ``results.csv`` of the sweep says.

    The directory of such a run is ``SWEEP/trials/NUMBER/seed-SEED``.
    """
    trial = run.resolve().parent
    if not trial.name.isdecimal():
        return False
    try:
        _, rows = read_rows(trial.parent.parent / "results.csv")
    except OSError:
        return False  # It is no run of a sweep, or the sweep has not ended.
    return any(row.get("trial") == f"{int(trial.name)}" and row.get("state") == "pruned" for row in rows)


def read_points(run: Path, axis: str = "opt-steps", record: str = SCORE) -> dict[float, float]:
    """The points of a curve, as ``read_curve`` reads them, but with NaN and infinity; empty if the run has none yet."""
    path = run / "metrics.csv"
    return _points(path, read_rows(path)[1], AXES[axis], record) if path.exists() else {}


def _points(path: Path, rows: Sequence[Row], column: str, record: str) -> dict[float, float]:
    rows = [row for row in rows if row[column] and row.get(record)]
    places = read_numbers(path, rows, column, finite=True)
    found = dict(zip(places, read_numbers(path, rows, record), strict=True))
    return dict(sorted(found.items()))


def _settings(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        values = parse_yaml(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return flatten(values) if isinstance(values, dict) else {}
