from __future__ import annotations

import csv
import json
import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from common.errors import RunDirectoryError
from crossborder.curves.learning_curve import read_points
from crossborder.sweeps.board import Board
from crossborder.sweeps.directory import SweepDirectory
from crossborder.sweeps.study import Claimed, SweepStudy
from crossborder.sweeps.trial_runner import StoppedError, TrialRunner, _Run
from learner.storage.rundir import read_identity
from tests.conftest import PATIENCE, wait_for
from tests.crossborder.sweeps.worth import GATE, WORTH, gate_of, give_mirror, make_sweep, sign_of_waiting
from tests.learner.storage.mirrored import RUN_ID, MirroredRun


class Sweep:
    """A sweep in a directory, and one runner of its trials."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        self.stopping = threading.Event()
        self.directory = SweepDirectory(directory / "sweep", make_sweep(directory, **changes))
        self.study = SweepStudy(self.directory)
        self._runner = TrialRunner(self.directory, self.study, Board(1, 0, None), self.stopping)

    def claim(self) -> Claimed:
        claimed = self.study.claim()
        assert claimed is not None
        return claimed

    def run(self) -> TrialState:
        claimed = self.claim()
        self._runner.run(claimed)
        return self.study.optuna.get_trials(deepcopy=False)[claimed.trial.number].state

    def run_of(self, number: int, seed: int = 0) -> Path:
        return self.directory.place_of(number) / f"seed-{seed}"


def test_a_trial_trains_with_each_seed_and_its_score_is_their_interquartile_mean(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, seeds=[3, 4])
    assert sweep.run() is TrialState.COMPLETE
    (trial,) = sweep.study.finished()
    assert (trial.value, trial.user_attrs["scores"]) == (30.0, [30.0, 30.0])
    assert trial.intermediate_values == {10: 10, 20: 20, 30: 30, 40: 10, 50: 20, 60: 30}
    for seed in (3, 4):
        run = sweep.run_of(0, seed)
        assert f"seed: {seed}\n" in (run / "config.yaml").read_text()
        assert {"best", "final", "metrics.csv", "run.json"} <= {path.name for path in run.iterdir()}
        assert "run directory:" in run.with_name(f"output-{seed}.log").read_text()


def test_a_run_is_not_restored_from_the_mirror_of_the_file_and_leaves_it_to_its_learner(tmp_path: Path) -> None:
    mirrored = MirroredRun(tmp_path / "production")
    mirrored.mirroring.write_state()
    sweep = Sweep(tmp_path, space={WORTH: [1.0]})
    give_mirror(sweep.directory.sweep, mirrored.url)
    assert sweep.run() is TrialState.COMPLETE
    assert read_identity(sweep.run_of(0)).run_id != RUN_ID
    mirrored.mirror.require_owner()


def test_a_run_that_misses_its_target_has_a_score(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, fixed={"trainer.target_score": 1000.0})
    assert (sweep.run(), sweep.study.finished()[0].value) == (TrialState.COMPLETE, 30.0)


def test_a_run_that_fails_ends_the_trial_and_its_last_words_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sweep = Sweep(tmp_path, arguments=["--no-such-option"])
    with caplog.at_level("INFO"):
        assert sweep.run() is TrialState.FAIL
    (warning,) = (record for record in caplog.records if "failed with exit code 2" in record.getMessage())
    assert warning.levelno == logging.WARNING
    assert "unknown option --no-such-option" in caplog.text


def test_the_last_words_of_a_run_are_those_of_its_log_if_it_has_opened_one(tmp_path: Path) -> None:
    run = _Run(tmp_path, 0, 0, 1)
    assert run.last_lines() == "nothing"
    run.log.write_text("".join(f"{number}\n" for number in range(9)))
    assert run.last_lines() == "4\n5\n6\n7\n8"


@pytest.mark.parametrize(
    ("number", "kills", "outcome"),
    [
        (signal.SIGKILL, 1, TrialState.COMPLETE),
        (signal.SIGTERM, 1, TrialState.COMPLETE),
        (signal.SIGKILL, 2, TrialState.FAIL),
    ],
)
def test_a_run_whose_process_a_signal_ends_goes_on_and_one_that_is_ended_again_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int, kills: int, outcome: TrialState
) -> None:
    sweep = Sweep(tmp_path, space={WORTH: [1.0]}, fixed={GATE: str(tmp_path / "gate")})
    sign = sign_of_waiting(tmp_path / "gate")
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(sweep.run)
        try:
            for _ in range(kills):
                wait_for(lambda: sign.exists() and sign.read_text(), "the run waits")
                pid = int(sign.read_text())
                sign.unlink()
                os.kill(pid, number)
            gate_of(tmp_path / "gate", 1.0).touch()
            assert ended.result(60) is outcome
        finally:
            sweep.stopping.set()
    assert f"trial 0, seed 0: signal {number} ended it; it goes on" in caplog.text
    assert read_identity(sweep.run_of(0)).is_resumed
    assert [trial.value for trial in sweep.study.finished()] == [30.0 if kills == 1 else None]


def test_a_run_whose_directory_cannot_be_written_ends_the_sweep_and_not_the_trial(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, space={WORTH: [1.0]})
    in_its_way = sweep.run_of(0)
    in_its_way.write_text("not a directory")
    with pytest.raises(RunDirectoryError, match=r"output-0.log ends:(.|\n)*seed-0.*(.|\n)*tries this run once more"):
        sweep.run()
    assert sweep.study.finished() == []
    in_its_way.unlink()
    assert sweep.run() is TrialState.COMPLETE
    assert [trial.number for trial in sweep.study.finished()] == [0]


def test_runs_of_two_seeds_that_each_could_not_begin_once_fail_no_trial(tmp_path: Path) -> None:
    """The disk was full twice; the score of the first run must not be lost."""
    sweep = Sweep(tmp_path, seeds=[3, 4], space={WORTH: [1.0]})
    for seed in (3, 4):
        in_its_way = sweep.run_of(0, seed)
        in_its_way.write_text("not a directory")
        with pytest.raises(RunDirectoryError, match="tries this run once more"):
            sweep.run()
        in_its_way.unlink()
    assert sweep.run() is TrialState.COMPLETE


def test_a_run_that_cannot_begin_at_two_starts_fails_its_trial_and_the_next_one_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its replay may be too large for a disk with room for others."""
    sweep = Sweep(tmp_path, space={WORTH: [1.0, 2.0]})
    sweep.run_of(0).write_text("not a directory")
    with pytest.raises(RunDirectoryError):
        sweep.run()
    assert sweep.run() is TrialState.FAIL
    assert "trial 0: failed: it could not begin for the second time" in caplog.text
    assert sweep.run() is TrialState.COMPLETE


def test_a_trial_whose_directory_is_renamed_ends_the_sweep_at_once_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    gated = {"trainer.max_opts": 100, GATE: str(tmp_path / "gate")}
    sweep = Sweep(tmp_path, space={WORTH: [1.0]}, fixed=gated)
    place, elsewhere = sweep.directory.place_of(0), tmp_path / "elsewhere"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(sweep.run)
        wait_for(lambda: read_points(sweep.run_of(0)), "an evaluation")
        place.rename(elsewhere)
        error = running.exception(PATIENCE)
    assert isinstance(error, RunDirectoryError)
    assert str(error).startswith(f"{place}: it was renamed or removed while the sweep runs")
    elsewhere.rename(place)
    gate_of(tmp_path / "gate", 1.0).touch()
    assert sweep.run() is TrialState.COMPLETE


def test_values_that_do_not_fit_each_other_fail_the_trial_before_it_trains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sweep = Sweep(tmp_path, space={"replay.capacity": [1]}, fixed={"trainer.warmup_period": 99})
    with caplog.at_level("INFO"):
        assert sweep.run() is TrialState.FAIL
    assert "trial 0: failed: " in caplog.text
    assert "trainer.warmup_period (99) is above replay.capacity (1)" in caplog.text
    assert not sweep.run_of(0).exists()


def test_a_trial_that_is_worse_than_the_median_is_ended_early(tmp_path: Path) -> None:
    gated = {"trainer.max_opts": 1000, GATE: str(tmp_path / "never")}
    sweep = Sweep(tmp_path, space={WORTH: [1.0, 0.5]}, fixed=gated, prune={"startup_trials": 1})
    first = sweep.claim()
    for step in range(10, 1001, 10):
        first.trial.report(float(step), step)
    sweep.study.optuna.tell(first.trial, 1000.0)
    assert sweep.run() is TrialState.PRUNED
    assert read_points(sweep.run_of(1)) == {10: 5.0}
    assert sweep.study.finished()[1].value == pytest.approx(5.0)
    assert (sweep.run_of(1) / "final").exists(), "it was stopped in order, and can be resumed by hand"


def test_a_trial_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    gated = {"trainer.max_opts": 100, GATE: str(tmp_path / "gate")}
    sweep = Sweep(tmp_path, space={WORTH: [1.0]}, fixed=gated)
    ended: list[type[BaseException]] = []

    def run() -> None:
        try:
            sweep.run()
        except StoppedError as error:
            ended.append(type(error))

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: read_points(sweep.run_of(0)), "an evaluation")
    sweep.stopping.set()
    thread.join()
    assert ended == [StoppedError]
    assert sweep.study.finished() == []
    assert max(read_points(sweep.run_of(0))) == 10

    gate_of(tmp_path / "gate", 1.0).touch()
    sweep.stopping.clear()
    assert sweep.run() is TrialState.COMPLETE
    assert sweep.study.finished()[0].number == 0
    assert json.loads((sweep.run_of(0) / "run.json").read_text())["incarnation"] > 1
    with (sweep.run_of(0) / "metrics.csv").open(newline="") as file:
        steps = [int(row["opt_steps"]) for row in csv.DictReader(file)]
    assert steps == [*range(10, 101, 10)]
