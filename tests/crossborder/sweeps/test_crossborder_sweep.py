from __future__ import annotations

import csv
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from common.errors import ChildFailedError
from crossborder.curves.learning_curve import read_points
from crossborder.sweeps import crossborder_sweep
from learner.storage.rundir import read_identity
from tests.conftest import Command, wait_for
from tests.crossborder.sweeps.worth import GATE, WORTH, gate_of, write_sweep

Start = Callable[..., Command]


def results(sweep: Path) -> list[dict[str, str]]:
    with (sweep / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def were_resumed(sweep: Path) -> dict[str, bool]:
    """Whether each run has been resumed, by the path of the run."""
    found = sorted(sweep.glob("trials/*/*/run.json"))
    return {str(path.parent.relative_to(sweep / "trials")): read_identity(path.parent).is_resumed for path in found}


def test_a_sweep_finds_the_best_settings_and_the_same_command_again_runs_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(write_sweep(tmp_path)), "--dir", str(tmp_path / "sweep"), "--jobs", "2"]
    for _ in range(2):
        assert crossborder_sweep.main(words) == 0
        told = capsys.readouterr().out
        assert "2 of 2 trials have ended" in told
        assert [cells for line in told.splitlines() if (cells := line.split())[1:2] == ["complete"]] == [
            ["1", "complete", "90", "90", "3"],
            ["0", "complete", "30", "30", "1"],
        ]
    assert {row[WORTH]: row["score"] for row in results(tmp_path / "sweep")} == {"1.0": "30.0", "3.0": "90.0"}
    best = yaml.safe_load((tmp_path / "sweep" / "best.yaml").read_text())
    assert best["evaluator"]["params"]["worth"] == 3.0
    assert were_resumed(tmp_path / "sweep") == {"0000/seed-0": False, "0001/seed-0": False}


def test_a_sweep_of_which_every_trial_has_failed_fails_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = write_sweep(tmp_path, score={"record": "eval_nothing"})
    for _ in range(2):
        assert crossborder_sweep.main([str(failing), "--dir", str(tmp_path / "sweep")]) == ChildFailedError.exit_code
        told = capsys.readouterr()
        assert "2 of 2 trials have ended" in told.out
        assert "crossborder-sweep: all of 2 trials failed; the output of the last one is in" in told.err


@pytest.mark.parametrize(
    ("signalled", "number", "code"),
    [
        (Command.signal, signal.SIGKILL, -9),
        (Command.signal, signal.SIGTERM, 143),
        (Command.signal_another_thread, signal.SIGTERM, 143),
    ],
)
def test_a_sweep_that_is_killed_goes_on_and_runs_no_finished_trial_again(
    tmp_path: Path, start: Start, signalled: Callable[[Command, int], None], number: int, code: int
) -> None:
    gated = write_sweep(tmp_path, space={WORTH: [1.0, 2.0]}, fixed={GATE: str(tmp_path / "gate")})
    sweep, words = tmp_path / "sweep", [str(gated), "--dir", str(tmp_path / "sweep")]
    gate_of(tmp_path / "gate", 1.0).touch()
    command = start("crossborder-sweep", *words)
    wait_for(lambda: read_points(sweep / "trials" / "0001" / "seed-0"), "the second trial's first evaluation")
    signalled(command, number)
    assert command.wait() == code
    assert [row["trial"] for row in results(sweep)] == ["0"]
    gate_of(tmp_path / "gate", 2.0).touch()
    assert start("crossborder-sweep", *words).wait() == 0
    assert [row["score"] for row in results(sweep)] == ["30.0", "60.0"]
    assert were_resumed(sweep) == {"0000/seed-0": False, "0001/seed-0": True}


def test_jobs_of_an_array_share_a_sweep_over_seeds(tmp_path: Path, start: Start) -> None:
    path, sweep = write_sweep(tmp_path, space={}, seeds=[5, 6, 7]), tmp_path / "sweep"
    study = f"sqlite:///{tmp_path}/study.db"
    jobs = [
        start("crossborder-sweep", str(path), "--dir", str(sweep), "--study", study, "--trials", "1") for _ in "abc"
    ]
    assert [job.wait() for job in jobs] == [0, 0, 0]
    assert sorted(row["seed"] for row in results(sweep)) == ["5", "6", "7"]
    assert [*were_resumed(sweep).values()] == [False, False, False]
    assert any("interquartile mean 30 [30, 30] of 3 runs" in job.output() for job in jobs)


def test_results_that_cannot_be_written_are_told_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(write_sweep(tmp_path)), "--dir", str(tmp_path / "sweep"), "--trials", "1"]
    in_their_way = tmp_path / "sweep" / "results.csv"
    assert crossborder_sweep.main(words) == 0
    in_their_way.unlink()
    in_their_way.mkdir()
    assert crossborder_sweep.main(words) == 4
    assert f"crossborder-sweep: {tmp_path / 'sweep'}: cannot be written: Is a directory" in capsys.readouterr().err


def test_a_database_that_fails_after_it_was_opened_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(tmp_path / "study.db")) as database:
        database.execute("CREATE TABLE studies (of_another_program INTEGER)")
    words = [str(write_sweep(tmp_path)), "--dir", str(tmp_path / "sweep"), "--study", f"sqlite:///{tmp_path}/study.db"]
    assert crossborder_sweep.main(words) == 2
    assert "--study: the database fails: (sqlite3.OperationalError) table studies has no" in capsys.readouterr().err


def test_the_check_finds_a_wrong_setting_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert crossborder_sweep.main([str(write_sweep(tmp_path)), "--check"]) == 0
    assert "good. 2 trials, 1 settings" in capsys.readouterr().out
    assert crossborder_sweep.main([str(write_sweep(tmp_path, space={"evaluator.params.wort": [1]})), "--check"]) == 2
    assert "evaluator.params.wort: unknown parameter (did you mean 'worth'?)" in capsys.readouterr().err
    assert not (tmp_path / "sweeps").exists()
