from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.study import Study

from common.errors import ConfigError, PluginError, RunDirectoryError
from crossborder.sweeps import crossborder_sweep
from crossborder.sweeps.directory import SweepDirectory
from crossborder.sweeps.study import SweepStudy
from tests.conftest import Command
from tests.crossborder.sweeps.worth import WORTH, make_sweep, write_sweep

LR = {"lr": {"log": [1e-5, 1e-1]}}
STORAGES = [None, "sqlite:///{}/study.db"]


def open_study(directory: Path, storage: str | None = None, **changes: Any) -> SweepStudy:
    return SweepStudy(
        SweepDirectory(directory / "sweep", make_sweep(directory, **changes)), storage and storage.format(directory)
    )


def finish(study: SweepStudy, n: int) -> list[Any]:
    """Claim and finish trials; their values."""
    chosen = []
    for _ in range(n):
        claimed = study.claim()
        assert claimed is not None
        chosen.append(claimed.values)
        study.optuna.tell(claimed.trial, float(claimed.trial.number))
        os.close(claimed.lock)
    return chosen


@pytest.mark.parametrize("storage", STORAGES)
def test_a_grid_has_every_combination_once_for_all_processes_together(tmp_path: Path, storage: str | None) -> None:
    space = {"a": [1, 2], "b": [[8], [8, 8]]}
    one, two = (open_study(tmp_path, storage, space=space) for _ in range(2))
    found = finish(one, 1) + finish(two, 2) + finish(one, 1)
    assert sorted(map(str, found)) == sorted(str({"a": a, "b": b}) for a in (1, 2) for b in ([8], [8, 8]))
    assert one.claim() is two.claim() is None


def test_sweeps_in_directories_of_one_name_have_trials_of_their_own_in_one_database(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    for name, values in (("one", [1, 2]), ("two", [3, 4])):
        (tmp_path / name).mkdir()
        study = open_study(tmp_path / name, storage, space={"a": values})
        assert finish(study, 2) == [{"a": value} for value in values]
        assert open_study(tmp_path / name, storage, space={"a": values}).claim() is None


def test_a_sweep_goes_on_in_a_directory_that_was_moved(tmp_path: Path) -> None:
    finish(open_study(tmp_path, space={"a": [1, 2]}), 1)
    moved = (tmp_path / "sweep").rename(tmp_path / "moved")
    study = SweepStudy(SweepDirectory(moved, make_sweep(tmp_path, space={"a": [1, 2]})))
    assert [trial.number for trial in study.finished()] == [0]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_sweep_makes_the_same_choices_also_when_it_goes_on(tmp_path: Path, sampler: str) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    whole = finish(open_study(tmp_path / "a", space=LR, sampler=sampler, trials=14), 14)
    parts = [finish(open_study(tmp_path / "b", space=LR, sampler=sampler, trials=14), 7) for _ in range(2)]
    assert whole == parts[0] + parts[1]
    assert len({values["lr"] for values in whole}) == 14
    assert open_study(tmp_path / "b", space=LR, sampler=sampler, trials=14).claim() is None


def test_a_trial_that_a_process_left_is_taken_up_first_with_its_values(tmp_path: Path) -> None:
    study = open_study(tmp_path, space=LR, sampler="tpe", trials=3)
    left, held = study.claim(), study.claim()
    assert left is not None
    assert held is not None
    os.close(left.lock)  # As the kernel does when the process is killed.
    again = open_study(tmp_path, space=LR, sampler="tpe", trials=3).claim()
    assert again is not None
    assert (again.trial.number, again.values) == (left.trial.number, left.values)
    new = study.claim()
    assert new is not None
    assert new.trial.number == 2
    assert study.claim() is None, "three trials have begun, and all have a process"
    for claimed in (held, again, new):
        os.close(claimed.lock)


def test_a_trial_that_ends_while_another_process_looks_for_one_is_not_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, lock = open_study(tmp_path, space={"a": [1, 2]}), SweepDirectory.claim
    first = study.claim()
    assert first is not None

    def claim(directory: SweepDirectory, number: int) -> int | None:
        if number == first.trial.number:  # Its owner does this after the other process has seen that the trial runs.
            study.optuna.tell(first.trial, 0.0)
            os.close(first.lock)
        return lock(directory, number)

    monkeypatch.setattr(SweepDirectory, "claim", claim)
    second = open_study(tmp_path, space={"a": [1, 2]}).claim()
    assert second is not None
    assert second.trial.number == 1
    os.close(second.lock)
    held = lock(study._directory, 0)
    assert held is not None, "the lock of the trial that has ended was let go"
    os.close(held)


def test_a_grid_is_compared_with_its_trials_once_however_large_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = list[int](), Study.get_trials

    def count(study: Study, *args: Any, **kwargs: Any) -> Any:
        looks.append(1)
        return look(study, *args, **kwargs)

    monkeypatch.setattr(Study, "get_trials", count)
    for _ in range(2):
        study = open_study(tmp_path, space={"a": [*range(10)], "b": [1, 2, 3]})
    assert len(looks) == 2
    assert len(study.optuna.trials) == 30


OPENS = """
import os, resource, signal, sys
from pathlib import Path
from tests.crossborder.sweeps.test_study import finish, open_study
study = open_study(Path(), space={"a": [1, 2]})  # By a relative path, as a user's command has it.
"""
IS_KILLED = "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\nstudy.claim()"
HAS_A_FULL_DISK = """
size = Path("sweep/study.journal").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, resource.RLIM_INFINITY))
try:
    study.claim()
except OSError as error:
    sys.exit(error.errno)
"""


@pytest.mark.parametrize(("fate", "code"), [(IS_KILLED, -signal.SIGKILL), (HAS_A_FULL_DISK, errno.EFBIG)])
def test_a_process_that_ends_while_it_writes_a_line_stops_no_later_process(
    fate: str, code: int, start: Callable[..., Command], tmp_path: Path
) -> None:
    study = open_study(tmp_path, space={"a": [1, 2]})
    (tmp_path / "fate.py").write_text(OPENS + fate)
    ended = start("fate", cwd=tmp_path)
    assert ended.wait() == code, ended.output()
    finish(open_study(tmp_path, space={"a": [1, 2]}), 2)
    assert [trial.value for trial in study.finished()] == [0.0, 1.0]


@pytest.mark.parametrize("damage", [b"@@@", b"\xff\xfe", b"{}", b"7", b"[" * 100_000])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_damaged_line_is_told_with_its_number(tmp_path: Path, damage: bytes, is_last: bool) -> None:
    open_study(tmp_path)
    journal = tmp_path / "sweep" / "study.journal"
    first, *others = journal.read_bytes().splitlines(keepends=True)
    lines = [first, *others, damage + b"\n"] if is_last else [first, damage + b"\n", *others]
    journal.write_bytes(b"".join(lines))
    number = len(lines) if is_last else 2
    with pytest.raises(RunDirectoryError, match=f"study.journal, line {number}: expected a record in JSON"):
        open_study(tmp_path)


@pytest.mark.parametrize("name", ["lock", "study.journal"])
def test_a_process_that_stands_still_with_a_lock_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("crossborder.sweeps.directory.LOCK_SECONDS", 0.1)
    study = open_study(tmp_path)
    held = os.open(tmp_path / "sweep" / name, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(RunDirectoryError, match=f"{name}: another process has held it for 0.1 s"):
        study.claim()
    os.close(held)
    study.claim()


def test_seeds_alone_are_a_grid(tmp_path: Path) -> None:
    study = open_study(tmp_path, space={}, seeds=[3, 5])
    assert finish(study, 2) == [{"seed": 3}, {"seed": 5}]
    assert [trial.number for trial in study.finished()] == [0, 1]


def test_choices_of_the_example_are_values_of_its_lists(tmp_path: Path) -> None:
    study = open_study(tmp_path, space={WORTH: [1.0, None]}, sampler="random", trials=12)
    assert {values[WORTH] for values in finish(study, 12)} == {1.0, None}


@pytest.mark.parametrize(
    "url", ["study.db", "nosuch://optuna:secret@db/sweeps", "sqlite:///{}/missing/study.db", "redis://h"]
)
def test_a_database_that_cannot_be_opened_is_told_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"--study: expected the URL of a database that can be opened") as error:
        open_study(tmp_path, url)
    assert "secret" not in str(error.value)


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name in [
        name for name in sys.modules if name.split(".")[0] == "optuna" or name.startswith("crossborder.sweeps.")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    for words in ([], ["--check"]):
        assert crossborder_sweep.main([str(write_sweep(tmp_path)), *words]) == PluginError.exit_code
        assert "pip install 'crossborder[sweep]'" in capsys.readouterr().err
