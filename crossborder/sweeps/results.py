"""The results of a sweep: a table of its trials, and the configuration of the best one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from common.config.run_config import dump_config
from crossborder.curves.statistics import summarize
from crossborder.sweeps.board import short
from crossborder.sweeps.directory import SweepDirectory
from crossborder.sweeps.study import SweepStudy, params_of
from crossborder.sweeps.sweep_config import SweepConfig, configure
from learner.shared.durable import replace_text

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

SHOWN = 10
"""Trials in the table of a terminal."""


@dataclass(frozen=True)
class Row:
    """One trial that has ended."""

    number: int
    state: str
    """complete, pruned or fail."""
    score: float | None
    """The score of a complete trial, or the last value of a trial that was ended early."""
    seeds: Sequence[float]
    """The scores of its runs."""
    values: dict[str, Any]


def rank(study: SweepStudy, sweep: SweepConfig) -> list[Row]:
    """The trials that have ended: the complete ones first, each kind with its best first."""
    rows = [_row(trial, sweep) for trial in study.finished()]
    sign = -1 if sweep.score.direction == "maximize" else 1
    states = ("complete", "pruned", "fail")
    return sorted(
        rows, key=lambda row: (states.index(row.state), sign * row.score if row.score is not None else np.inf)
    )


def _row(trial: FrozenTrial, sweep: SweepConfig) -> Row:
    dimensions = sweep.dimensions()
    values = {key: dimensions[key].decode(value) for key, value in params_of(trial).items() if key in dimensions}
    scores = trial.user_attrs.get("scores", [])
    return Row(trial.number, trial.state.name.lower(), trial.value, scores, values)


def write_results(directory: SweepDirectory, study: SweepStudy) -> list[Row]:
    """Write ``results.csv`` and, where settings are chosen and a trial is complete, ``best.yaml``."""
    sweep = directory.sweep
    with directory.alone():
        rows = rank(study, sweep)
        replace_text(directory.path / "results.csv", _csv(rows, [*sweep.dimensions()]))
        if sweep.space and rows and rows[0].state == "complete":
            best = configure(directory.base, rows[0].values)
            replace_text(directory.path / "best.yaml", dump_config(best))
    return rows


def _csv(rows: Sequence[Row], keys: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["trial", "state", "score", "seeds", *keys])
    for row in sorted(rows, key=lambda row: row.number):
        values = [json.dumps(row.values.get(key)) for key in keys]
        score = "" if row.score is None else row.score
        writer.writerow([row.number, row.state, score, " ".join(map(str, row.seeds)), *values])
    return text.getvalue()


def table(rows: Sequence[Row], sweep: SweepConfig) -> Table:
    """The best trials for a terminal."""
    made = Table("trial", "state", "score", "of its seeds", *sweep.dimensions(), box=None)
    for row in rows[:SHOWN]:
        values = [short(row.values.get(key)) for key in sweep.dimensions()]
        made.add_row(str(row.number), row.state, short(row.score), " ".join(map(short, row.seeds)), *values)
    return made


def over_seeds(rows: Sequence[Row]) -> str:
    """The score of a sweep over seeds alone, in one line."""
    scores = np.array([row.score for row in rows if row.state == "complete" and row.score is not None])
    if not len(scores):
        return "no complete run"
    middle, low, high = summarize([scores])
    return (
        f"interquartile mean {middle:.5g} [{low:.5g}, {high:.5g}] of {len(scores)} runs; "
        "in brackets the bootstrap interval of 95 %"
    )
