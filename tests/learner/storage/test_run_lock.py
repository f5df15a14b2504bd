from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.errors import RunDirectoryError
from common.shared.mapped import read_boot_id
from learner.storage import run_lock
from learner.storage.run_lock import RunLock, reading
from tests.conftest import wait_for


@pytest.fixture(autouse=True)
def signs_in_a_tenth_of_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "_SIGN_SECONDS", 0.2)
    monkeypatch.setattr(run_lock, "_WATCH_SECONDS", 0.7)


def leave(path: Path) -> None:
    """Leave the lock as a learner on another host that has not ended in order."""
    (path / "lock").write_text("another-boot gpu-host\n")


@contextmanager
def signs(path: Path) -> Iterator[None]:
    """Give the signs of a learner whose lock the kernel here does not know."""
    ended = threading.Event()

    def give() -> None:
        while not ended.wait(0.05):
            os.utime(path / "lock")

    thread = threading.Thread(target=give)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_the_holder_says_on_which_host_it_lives_until_it_ends_in_order(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    begun = (tmp_path / "lock").stat().st_mtime_ns
    assert (tmp_path / "lock").read_text().startswith(f"{read_boot_id()} "), "boot and name of the host"
    wait_for(lambda: (tmp_path / "lock").stat().st_mtime_ns > begun, "a sign of life")
    lock.close()
    assert (tmp_path / "lock").read_text() == ""


def test_a_learner_on_another_host_without_common_locks_keeps_the_directory(tmp_path: Path) -> None:
    leave(tmp_path)
    with signs(tmp_path):
        with pytest.raises(RunDirectoryError, match="a learner on host 'gpu-host' is using this run directory"):
            RunLock(tmp_path)
        with pytest.raises(RunDirectoryError, match="is using"), reading(tmp_path):
            pass
    assert (tmp_path / "lock").read_text() == "another-boot gpu-host\n"


def test_the_directory_of_a_host_that_has_vanished_is_taken(tmp_path: Path) -> None:
    leave(tmp_path)
    RunLock(tmp_path).close()
    with reading(tmp_path):
        pass


def test_nobody_waits_for_a_learner_that_was_killed_on_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").write_text(f"{read_boot_id()} this-host\n")
    monkeypatch.setattr(run_lock, "_WATCH_SECONDS", float("inf"))  # time.sleep refuses it.
    lock = RunLock(tmp_path)
    assert lock.is_in_place
    lock.close()
