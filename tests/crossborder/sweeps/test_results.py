from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from rich.console import Console

from common.config.run_config import load_config
from crossborder.sweeps.directory import SweepDirectory
from crossborder.sweeps.results import over_seeds, rank, table, write_results
from crossborder.sweeps.study import SweepStudy
from tests.crossborder.sweeps.worth import WORTH, make_sweep


def finished(tmp_path: Path, *outcomes: float | TrialState, **changes: Any) -> tuple[SweepDirectory, SweepStudy]:
    """A sweep whose trials have ended in these ways."""
    worths = [float(i) for i in range(len(outcomes))]
    sweep = make_sweep(tmp_path, **{"space": {WORTH: worths}, **changes})
    directory = SweepDirectory(tmp_path / "sweep", sweep)
    study = SweepStudy(directory)
    for outcome in outcomes:
        claimed = study.claim()
        assert claimed is not None
        if isinstance(outcome, float):
            claimed.trial.set_user_attr("scores", [outcome - 1, outcome + 1])
            study.optuna.tell(claimed.trial, outcome)
        else:
            study.optuna.tell(claimed.trial, state=outcome)
        os.close(claimed.lock)
    return directory, study


@pytest.mark.parametrize(("direction", "order"), [("maximize", [3, 0, 2, 1]), ("minimize", [0, 3, 2, 1])])
def test_complete_trials_come_first_the_best_before_others(tmp_path: Path, direction: str, order: list[int]) -> None:
    outcomes = (1.0, TrialState.FAIL, TrialState.PRUNED, 5.0)
    directory, study = finished(tmp_path, *outcomes, score={"direction": direction})
    rows = rank(study, directory.sweep)
    assert [row.number for row in rows] == order
    assert [row.state for row in rows][2:] == ["pruned", "fail"]


def test_the_table_has_all_trials_and_best_yaml_is_a_configuration(tmp_path: Path) -> None:
    directory, study = finished(tmp_path, 1.0, 5.0, TrialState.FAIL)
    write_results(directory, study)
    rows = list(csv.DictReader(io.StringIO((directory.path / "results.csv").read_text())))
    assert [(row["trial"], row["state"], row["score"], row["seeds"], row[WORTH]) for row in rows] == [
        ("0", "complete", "1.0", "0.0 2.0", "0.0"),
        ("1", "complete", "5.0", "4.0 6.0", "1.0"),
        ("2", "fail", "", "", "2.0"),
    ]
    best = load_config(directory.path / "best.yaml")
    assert (best.evaluator.params["worth"], best.run_dir, best.name) == (1.0, None, "counting")
    console = Console(file=io.StringIO(), width=100)
    console.print(table(rank(study, directory.sweep), directory.sweep))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[1].split() == ["1", "complete", "5", "4", "6", "1"]


def test_without_a_complete_trial_there_is_no_best_configuration(tmp_path: Path) -> None:
    directory, study = finished(tmp_path, TrialState.FAIL)
    write_results(directory, study)
    assert not (directory.path / "best.yaml").exists()


def test_of_seeds_alone_there_is_an_interval_and_no_best_one(tmp_path: Path) -> None:
    directory, study = finished(tmp_path, 1.0, 1.0, 1.0, 1.0, space={}, seeds=[0, 1, 2, 3])
    rows = write_results(directory, study)
    assert over_seeds(rows).startswith("interquartile mean 1 [1, 1] of 4 runs;")
    assert not (directory.path / "best.yaml").exists()
    assert over_seeds([]) == "no complete run"
