from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from crossborder.sweeps.directory import SweepDirectory
from crossborder.sweeps.study import SweepStudy
from crossborder.sweeps.sweeping import Sweeper
from tests.crossborder.sweeps.worth import make_sweep


def sweep(tmp_path: Path, stopping: threading.Event | None = None, **options: Any) -> SweepStudy:
    """Run a sweep whose trials all fail before they begin: no replay has room for less than the warm-up."""
    capacities = {"replay.capacity": [1, 2, 3, 4]}
    stopping = stopping or threading.Event()
    directory = SweepDirectory(
        tmp_path / "sweep", make_sweep(tmp_path, space=capacities, fixed={"trainer.warmup_period": 99})
    )
    study = SweepStudy(directory)
    Sweeper(directory, study, stopping, None, **options).run()
    return study


def test_a_sweep_ends_when_its_first_trials_all_fail(tmp_path: Path) -> None:
    study = sweep(tmp_path)
    assert len(study.finished()) == 3
    last = tmp_path / "sweep" / "trials" / "0002"
    assert study.find_failure() == f"all of 3 trials failed; the output of the last one is in {last}"


def test_at_most_as_many_trials_run_here_as_were_asked_for(tmp_path: Path) -> None:
    study = sweep(tmp_path, trials=2, jobs=2)
    assert len(study.finished()) == 2
    assert study.find_failure() is None, "other trials may not fail"


def test_a_sweep_that_is_to_stop_takes_no_trial(tmp_path: Path) -> None:
    stopping = threading.Event()
    stopping.set()
    assert sweep(tmp_path, stopping, jobs=2).finished() == []
