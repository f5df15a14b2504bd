from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from common.config.nested import to_yaml
from common.config.run_config import load_config
from common.errors import ConfigError, RunDirectoryError
from crossborder.sweeps.directory import SweepDirectory
from crossborder.sweeps.sweep_config import load_sweep
from tests.crossborder.sweeps.worth import make_sweep


def test_the_directory_keeps_the_sweep_and_the_configuration_as_they_were_when_it_began(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, fixed={"trainer.max_opts": 77})
    SweepDirectory(tmp_path / "sweep", sweep)
    (tmp_path / "counting.yaml").unlink()
    found = SweepDirectory(tmp_path / "sweep", sweep)
    assert load_config(found.base).trainer.max_opts == 77
    assert load_sweep(tmp_path / "sweep" / "sweep.yaml") == sweep


def test_a_sweep_goes_on_with_more_trials_and_not_with_other_settings(tmp_path: Path) -> None:
    for trials in (5, 50):
        SweepDirectory(tmp_path / "sweep", make_sweep(tmp_path, trials=trials))
    assert load_sweep(tmp_path / "sweep" / "sweep.yaml").trials == 50
    with pytest.raises(
        ConfigError, match=r"expected the sweep that began there, found another fixed, seeds; .*\(--dir\)"
    ):
        SweepDirectory(tmp_path / "sweep", make_sweep(tmp_path, seeds=[3], fixed={"seed": 2}))


def test_a_sweep_goes_on_if_its_configuration_was_moved_and_not_if_it_was_edited(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    SweepDirectory(tmp_path / "sweep", sweep)
    moved = sweep.config.rename(tmp_path / "moved.yaml")
    SweepDirectory(tmp_path / "sweep", sweep.model_copy(update={"config": moved}))
    moved.write_text(moved.read_text() + "\nseed: 77\n")
    with pytest.raises(ConfigError, match="expected the sweep that began there, found another config"):
        SweepDirectory(tmp_path / "sweep", sweep.model_copy(update={"config": moved}))


def test_a_trial_is_locked_until_all_that_hold_it_have_let_go(tmp_path: Path) -> None:
    directory = SweepDirectory(tmp_path / "sweep", make_sweep(tmp_path))
    lock = directory.claim(3)
    assert lock is not None
    heir = os.dup(lock)
    assert directory.claim(3) is None
    other = directory.claim(4)
    assert other is not None
    os.close(other)
    os.close(lock)
    assert directory.claim(3) is None, "a child that inherited the lock still runs"
    os.close(heir)
    again = directory.claim(3)
    assert again is not None
    os.close(again)


def test_a_trial_is_abandoned_when_its_process_has_died_and_its_run_still_stops(tmp_path: Path) -> None:
    directory = SweepDirectory(tmp_path / "sweep", make_sweep(tmp_path))
    assert directory.is_abandoned(0), "its process was killed before it could lock the trial"
    lock = directory.claim(0)
    assert lock is not None
    assert not directory.is_abandoned(0)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (directory.place_of(0) / "lock").write_text(f"{socket.gethostname()} {dead.pid}")
    assert directory.is_abandoned(0)
    (directory.place_of(0) / "lock").write_text(f"another-host {dead.pid}")
    assert not directory.is_abandoned(0)
    os.close(lock)


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="file/sweep: cannot be written: Not a directory"):
        SweepDirectory(tmp_path / "file" / "sweep", make_sweep(tmp_path))


def test_a_sweep_does_not_begin_in_the_directory_of_something_else(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.yaml", "run.json"):
        (run / name).write_text("of the run")
    with pytest.raises(RunDirectoryError, match=r"run: expected a sweep \(study.name\) or an empty.*found config"):
        SweepDirectory(run, make_sweep(tmp_path))
    assert (run / "config.yaml").read_text() == "of the run"


@pytest.mark.parametrize("name", ["sweep.yaml", "config.yaml"])
def test_a_sweep_does_not_take_a_users_own_file_for_its_own(tmp_path: Path, name: str) -> None:
    sweep, own = make_sweep(tmp_path), tmp_path / "mine" / name
    own.parent.mkdir()
    own.write_text(to_yaml(sweep.model_dump(mode="json")))
    before = own.read_text()
    with pytest.raises(RunDirectoryError, match=f"mine: expected a sweep .* or an empty directory, found {name};"):
        SweepDirectory(own.parent, sweep)
    assert own.read_text() == before


def test_a_sweep_of_the_former_release_goes_on_which_had_no_file_with_its_name(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    directory = SweepDirectory(tmp_path / "sweep", sweep)
    directory.place_of(0)
    (directory.path / "study.name").unlink()
    assert SweepDirectory(tmp_path / "sweep", sweep).read_study_name() == "sweep"


def test_a_sweep_that_was_killed_while_it_began_begins(tmp_path: Path) -> None:
    path = SweepDirectory(tmp_path / "sweep", make_sweep(tmp_path)).path
    (path / "sweep.yaml").unlink()
    SweepDirectory(path, make_sweep(tmp_path))
    assert (path / "sweep.yaml").exists()
