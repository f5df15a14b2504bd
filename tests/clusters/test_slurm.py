"""The job scripts of deploy/slurm on a real slurmctld and slurmd: one story, told in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from crossborder.certificates.crossborder_certs import main as certs
from tests.clusters.namespace import why_impossible
from tests.clusters.slurm import PROGRAMS, Slurm
from tests.conftest import ROOT, counting_values, merged, wait_for

WHY_NOT = why_impossible(*PROGRAMS)
pytestmark = [pytest.mark.clusters, pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")]
SCRIPTS = ROOT / "deploy/slurm"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    (tmp_path / "slurm").mkdir()
    with Slurm(tmp_path / "slurm") as made:
        yield made


def test_a_learner_and_an_array_of_actors_live_through_what_a_scheduler_does(slurm: Slurm, tmp_path: Path) -> None:
    made = tmp_path / "certs"
    assert certs(["--out", str(made), "--host", "localhost"]) == 0
    changes = {"trainer": {"max_opts": 10**8}, "push": {"flush_seconds": 0.1}, "run_dir": None}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(merged(counting_values(tmp_path / "run"), changes)))
    places = {"BIN": str(ROOT / ".venv/bin"), "CERTS": str(made), "PYTHONPATH": str(ROOT)}
    run = {"CONFIG": str(tmp_path / "run.yaml"), "RUN": str(tmp_path / "run")}
    log = tmp_path / "learner.log"

    def heard(words: str, times: int) -> None:
        wait_for(lambda: log.exists() and log.read_text().count(words) >= times, f"{words!r} {times} times")

    options = ("--mem=0", "--partition=learners", f"--output={log}")
    learner = slurm.submit(str(SCRIPTS / "learner.sbatch"), *options, **places, **run)
    array = slurm.submit(
        str(SCRIPTS / "actors.sbatch"),
        *(f"--dependency=after:{learner}", "--array=0-3", "--cpus-per-task=1", "--mem-per-cpu=0", "--partition=actors"),
        f"--output={tmp_path}/actors-%a.log",
        **places,
        LEARNER_JOB=learner,
        OPTIONS="--allow tests.parts",
    )
    heard(" joined from ", 4)

    # One task is cancelled: its actor says goodbye, so the learner has its rows.
    slurm.ask("scancel", f"{array}_2")
    heard(" left\n", 1)
    wait_for(lambda: slurm.state(f"{array}_2") == "CANCELLED", "the cancelled task")

    # More important work needs their processors: at least one task is preempted, and waits for its next life.
    urgent = tmp_path / "urgent.sh"
    urgent.write_text("#!/bin/sh\nexit 0\n")
    slurm.submit(str(urgent), "--partition=urgent", "--cpus-per-task=11", "--output=/dev/null")
    heard(" left\n", 2)
    others = [f"{array}_{i}" for i in (0, 1, 3)]
    wait_for(lambda: "PENDING" in [slurm.state(task) for task in others], "a task that waits")
    assert slurm.state(learner) == "RUNNING"

    # The time limit of the learner is near: it saves, and its job goes back to the queue.
    slurm.ask("scancel", "--batch", "--signal=USR1", learner)
    wait_for(lambda: slurm.state(learner) == "PENDING", "the learner's next life")
    assert (tmp_path / "run/final").is_dir()
    joined = log.read_text().count(" joined from ")
    # SLURM would wait for two minutes. A job that begins in the second in which its former life ended is killed: slurmd
    # takes its credential for the former one.
    for job in (learner, *others):
        slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now+3")
    heard(" joined from ", joined + 3)
    assert (tmp_path / "run/run.json").is_file()

    # The learner is cancelled: all its processes get SIGTERM, it takes the last rows, and all tasks end.
    left = log.read_text().count(" left\n")
    slurm.ask("scancel", learner)
    heard("it was asked to stop", 2)
    assert log.read_text().count(" left\n") >= left + 3
    wait_for(lambda: [slurm.state(task) for task in others] == ["COMPLETED"] * 3, "the end of all tasks")
    assert "ingest ended with" not in log.read_text()
