"""Files and directories that are whole, or as they were before, wherever a kill or a full disk comes between."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from common.errors import CheckpointError
from common.process.clocks import Deadline
from learner.shared import durable
from learner.shared.durable import (
    clean_up,
    has_file,
    locate,
    logging_write_errors,
    old_of,
    put_in_place,
    read_whole,
    removing_unfinished,
    replace_bytes,
    replace_text,
)
from tests.conftest import PATIENCE, wait_for


def make(directory: Path, text: str) -> Path:
    directory.mkdir()
    (directory / "f").write_text(text)
    return directory


@contextmanager
def full_disk_at_sync(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail the sync that follows this many others."""
    sync, left = durable.sync, number

    def sync_or_fail(path: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync", sync_or_fail)
        yield


def test_a_directory_takes_the_place_of_another_and_nothing_else_is_left(tmp_path: Path) -> None:
    put_in_place(make(tmp_path / "draft", "first"), tmp_path / "target")
    put_in_place(make(tmp_path / "draft", "second"), tmp_path / "target")
    assert (tmp_path / "target" / "f").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("syncs", [0, 1, 2])
def test_a_disk_that_is_full_at_any_sync_leaves_the_former_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncs: int
) -> None:
    target = make(tmp_path / "target", "first")
    draft = make(tmp_path / "draft", "second")
    with full_disk_at_sync(syncs, monkeypatch), pytest.raises(OSError, match="No space left"):
        put_in_place(draft, target)
    assert (target / "f").read_text() == "first"
    assert (draft / "f").read_text() == "second"
    assert not old_of(target).exists()


def test_the_next_call_puts_right_what_a_kill_between_the_two_renames_has_left(tmp_path: Path) -> None:
    target = make(tmp_path / "target", "first")
    target.rename(old_of(target))  # Killed here.
    with pytest.raises(OSError, match="draft"):
        put_in_place(tmp_path / "draft", target)
    assert (target / "f").read_text() == "first"


def test_a_former_directory_that_a_kill_has_left_beside_the_new_one_is_removed(tmp_path: Path) -> None:
    target = make(tmp_path / "target", "second")
    make(old_of(target), "first")
    put_in_place(make(tmp_path / "draft", "third"), target)
    assert (target / "f").read_text() == "third"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_what_a_kill_has_left_is_settled_although_nobody_writes_that_number_again(tmp_path: Path) -> None:
    for name in (".7.part", ".8.old", ".9.old", "9", ".best.old"):
        make(tmp_path / name, name)
    clean_up(tmp_path)
    assert {path.name: (path / "f").read_text() for path in tmp_path.iterdir()} == {
        "8": ".8.old",
        "9": "9",
        ".best.old": ".best.old",
    }


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    replace_text(path, "first")
    with full_disk_at_sync(0, monkeypatch), pytest.raises(OSError, match="No space left"):
        replace_text(path, "second")
    assert path.read_text() == "first"
    replace_text(path, "third")
    assert path.read_text() == "third"
    assert [found.name for found in tmp_path.iterdir()] == ["f"]


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """Root would replace /dev/stdout or /dev/null for all programs."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(OSError, match="expected a file, found a device or a pipe"):
            replace_bytes(path, b"x")
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, pipe]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), CheckpointError("cannot be saved")]
)
def test_an_error_of_writing_is_logged_with_its_consequence(caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    def write() -> None:
        raise error

    with logging_write_errors("training goes on without this record"):
        write()
    assert f"training goes on without this record: {error}" in caplog.text


def test_an_error_that_is_not_one_of_writing_is_raised() -> None:
    with pytest.raises(ValueError, match="a defect"), logging_write_errors("it is not logged"):
        raise ValueError("a defect")


def test_a_draft_that_is_cut_off_is_removed_and_one_that_is_finished_stays(tmp_path: Path) -> None:
    def write_half() -> None:
        make(tmp_path / "draft", "half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), removing_unfinished(tmp_path / "draft"):
        write_half()
    assert not (tmp_path / "draft").exists()
    with removing_unfinished(tmp_path / "draft") as draft:
        make(draft, "whole")
    assert (tmp_path / "draft" / "f").read_text() == "whole"


REPLACEMENTS = """
import random
import sys
import time
from pathlib import Path
from learner.shared import durable

durable.sync = lambda path: None  # Without it the directory is replaced many times during one reading.
target, number = Path(sys.argv[1]), 0
while not (target.parent / "stop").exists():
    number += 1
    draft = target.with_name(".draft")
    draft.mkdir()
    for name in ("a", "b"):
        (draft / name).write_text(str(number))
    durable.put_in_place(draft, target)
    if sys.argv[2] == "remove":
        time.sleep(random.uniform(0, 0.002))  # So that it is also removed in the middle of a reading.
        durable.remove(target)
"""


@contextmanager
def replacing(target: Path, then: str = "stay") -> Iterator[None]:
    """Another process replaces the directory ``target`` all the while; its files ``a`` and ``b`` have one number."""
    process = subprocess.Popen([sys.executable, "-c", REPLACEMENTS, str(target), then])
    try:
        yield
    finally:
        (target.parent / "stop").touch()
        assert process.wait(PATIENCE) == 0


def read_both(directory: Path) -> tuple[str, str]:
    return (directory / "a").read_text(), (directory / "b").read_text()


def test_a_reader_sees_one_whole_directory_while_another_process_replaces_it(tmp_path: Path) -> None:
    target, seen = tmp_path / "target", set[str]()
    with replacing(target):
        wait_for(target.exists, "the first directory")
        deadline = Deadline(PATIENCE)
        while len(seen) < 20:
            assert not deadline.passed(), f"{len(seen)} directories seen"
            assert locate(target) is not None
            assert has_file(target, "b")
            a, b = read_whole(target, read_both)
            assert a == b
            seen.add(a)


def test_a_reader_sees_a_whole_directory_or_none_while_another_process_removes_it(tmp_path: Path) -> None:
    target, seen = tmp_path / "target", set[str]()
    with replacing(target, "remove"):
        deadline = Deadline(PATIENCE)
        while len(seen) < 100:
            assert not deadline.passed(), f"{len(seen)} directories seen"
            with suppress(FileNotFoundError):
                names = read_whole(target, lambda place: sorted(path.name for path in place.iterdir()))
                assert names == ["a", "b"]
                a, b = read_whole(target, read_both)
                assert a == b
                seen.add(a)


def test_a_directory_is_read_again_if_it_was_replaced_during_the_reading(tmp_path: Path) -> None:
    target, reads = make(tmp_path / "target", "first"), list[Path]()

    def read(place: Path) -> str:
        reads.append(place)
        if len(reads) == 1:
            put_in_place(make(tmp_path / "draft", "second"), target)
            raise ValueError("a part is of the former directory")
        return (place / "f").read_text()

    assert read_whole(target, read) == "second"
    assert reads == [target, target]


def test_an_error_of_reading_is_raised_if_the_directory_is_still_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="target/f"):
        read_whole(tmp_path / "target", lambda place: (place / "f").read_text())
    make(tmp_path / "target", "damaged")
    with pytest.raises(ValueError, match="damaged"):
        read_whole(tmp_path / "target", lambda place: int((place / "f").read_text()))


def test_a_directory_that_is_replaced_during_each_reading_is_an_error(tmp_path: Path) -> None:
    target = make(tmp_path / "target", "first")

    def read(place: Path) -> str:
        put_in_place(make(tmp_path / "draft", "later"), target)
        return (place / "f").read_text()

    with pytest.raises(CheckpointError, match=r"target: it was replaced during each of 10 attempts to read it"):
        read_whole(target, read)


def test_the_former_directory_is_read_between_two_renames(tmp_path: Path) -> None:
    target = make(tmp_path / "target", "first")
    target.rename(old_of(target))
    assert locate(target) == old_of(target)
    assert read_whole(target, lambda place: (place / "f").read_text()) == "first"
