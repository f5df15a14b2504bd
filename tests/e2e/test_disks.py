"""Disks that are full, read-only or somebody else's, and clocks that jump."""

from __future__ import annotations

import csv
import itertools
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from common.errors import RunDirectoryError
from crossborder.inspecting import replay_inspect
from crossborder.policies import policy_eval
from learner.commands import learner_server, sync_train
from learner.loop.in_turns import train_in_turns
from learner.loop.server import LearnerServer
from learner.shared.actor_table import map_actor_table
from learner.storage.rundir import RunDir
from tests.conftest import Command, counting_config, endpoints, merged, wait_for
from tests.disks import Disk
from tests.e2e.test_by_hand import CALM, grows, steps_by_actor
from tests.e2e.test_resume import kept
from tests.learner.loop.test_in_turns import cartpole
from tests.learner.scrapes import scrape
from tests.stored import assert_stored

SERVER = {"listen": "127.0.0.1:0", "grace_seconds": 0.5}
NOBODY = 65534


def is_missed(what: str, disk: Disk, server: Command) -> bool:
    """Keep the disk full, and see whether the learner says what it could not write."""
    disk.fill()
    return f"training goes on without this {what}: " in server.output()


def test_a_disk_that_is_too_small_is_found_out_at_the_start_and_the_next_try_may_succeed(disk: Disk) -> None:
    config = counting_config(disk.path / "run", server=SERVER, replay={"capacity": 100_000})
    for room in ("4k", "16k", "256k", "1m", "4m"):
        disk.remount(f"size={room}")
        with pytest.raises(RunDirectoryError, match="No space left on device"), LearnerServer(config):
            pass
    disk.remount("size=64m")
    with LearnerServer(config) as server:
        files = [path for path in server.run.dir.shared.rglob("*") if path.is_file()]
        assert all(path.stat().st_blocks * 512 >= path.stat().st_size for path in files), "no write needs room later"


def test_a_run_goes_on_while_the_disk_is_full_and_keeps_checkpoints_and_records_when_there_is_room_again(
    start: Callable[..., Command], write_config: Callable[..., Path], disk: Disk
) -> None:
    run_dir = disk.path / "run"
    changes = {"trainer": {"checkpoint_seconds": 0.1, "record_interval": 20}, "replay": {"capacity": 500_000}}
    config = write_config(**merged(CALM, changes))
    server = start("learner-server", "--config", str(config), "--run-dir", str(run_dir), "--local-actors", "1")
    wait_for(lambda: kept(run_dir) > 0, "a checkpoint")
    for lost in ("checkpoint", "record"):
        wait_for(partial(is_missed, lost, disk, server), f"no room for a {lost}")
    port, last = endpoints(run_dir)["trainer_metrics_port"], kept(run_dir)
    steps = scrape(port)["opt_steps_total"]
    wait_for(lambda: scrape(port)["opt_steps_total"] > steps + 100, "training goes on")
    grows(run_dir, set(steps_by_actor(run_dir)))
    disk.clear()
    wait_for(lambda: kept(run_dir) > last, "a checkpoint again")
    server.signal(signal.SIGTERM)
    assert server.wait() == 128 + signal.SIGTERM, server.output()
    assert "Traceback" not in server.output()
    assert not list((run_dir / "checkpoints").glob(".*.part")), "what did not come to its end takes no room"
    with (run_dir / "metrics.csv").open(newline="") as file:
        axis = [int(row["opt_steps"]) for row in csv.DictReader(file)]
    assert axis == sorted(set(axis))
    table = map_actor_table(run_dir / "shared", create=False)
    assert_stored(run_dir, {0: int(table["env_steps"][0])})


@pytest.mark.parametrize("resume", [False, True])
def test_a_read_only_disk_is_refused_with_the_reason(disk: Disk, resume: bool) -> None:
    if resume:
        with closing(RunDir(disk.path / "run")) as run:
            run.begin()
    disk.remount("ro")
    with pytest.raises(RunDirectoryError, match="run: cannot be written: Read-only file system"):
        RunDir(disk.path / "run", resume=resume)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become somebody else")
def test_a_directory_without_the_right_to_write_is_refused_with_the_reason(tmp_path: Path) -> None:
    os.seteuid(NOBODY)
    try:
        with pytest.raises(RunDirectoryError, match="run: cannot be written: Permission denied"):
            RunDir(tmp_path / "run")
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become somebody else")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (learner_server.main, ("--resume",)),
        (sync_train.main, ("--resume",)),
        (policy_eval.main, ("--run",)),
        (replay_inspect.main, ("--export", "copy")),
    ],
)
def test_a_run_of_another_user_is_refused_with_the_reason(
    command: Callable[[list[str]], int], words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    os.seteuid(NOBODY)
    try:
        assert command([*words, str(tmp_path / "run")]) == RunDirectoryError.exit_code
    finally:
        os.seteuid(0)
    assert "Permission denied" in capsys.readouterr().err


def test_a_wall_clock_that_jumps_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def curve(name: str) -> list[tuple[str, str]]:
        config = cartpole(tmp_path / name, seed=3)
        config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"max_seconds": 600.0})})
        train_in_turns(config)
        with (tmp_path / name / "metrics.csv").open(newline="") as file:
            return [(row["opt_steps"], row["loss"]) for row in csv.DictReader(file)]

    expected = curve("steady")
    jumps = itertools.cycle((0.0, 4e9, 1e3))
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    assert curve("jumping") == expected
