from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import RunDirectoryError
from learner.shared.bell import Bell
from learner.shared.control import ControlBlock
from learner.shared.mapped import hold_alone, map_file


def test_words_written_through_one_mapping_are_read_through_another(tmp_path: Path) -> None:
    written = ControlBlock.at(tmp_path, create=True)
    read = ControlBlock.at(tmp_path)
    written.sampled = 2**40 + 1
    written.return_mean = -1.5
    assert read.sampled == 2**40 + 1
    assert read.return_mean == -1.5
    assert read.stopping == 0


def test_a_file_of_another_size_is_refused_with_both_sizes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345678")
    with pytest.raises(RunDirectoryError, match="expected 16 bytes, found 8"):
        map_file(tmp_path / "f", 16, create=False)


def test_an_existing_file_is_never_made_anew(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"precious")
    with pytest.raises(RunDirectoryError):
        map_file(tmp_path / "f", 8, create=True)
    assert (tmp_path / "f").read_bytes() == b"precious"


def test_a_new_file_is_allocated_at_once_so_that_a_full_disk_is_found_out_early(tmp_path: Path) -> None:
    map_file(tmp_path / "f", 1 << 20, create=True)
    assert (tmp_path / "f").stat().st_blocks * 512 >= 1 << 20
    with pytest.raises(RunDirectoryError, match="bytes of shared memory"):
        map_file(tmp_path / "g", 1 << 60, create=True)


def test_a_bell_is_heard_once_and_ringing_it_often_never_blocks() -> None:
    bell = Bell.create()
    assert not bell.wait(0)
    for _ in range(100_000):
        bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0)
    bell.close()


def test_a_bell_nobody_listens_to_any_more_does_not_stop_the_ringer() -> None:
    bell = Bell.create()
    os.close(bell.read_fd)
    with pytest.raises(BrokenPipeError):
        os.write(bell.write_fd, b"?")
    bell.ring()  # What os.write raised a line above would fail the test.
    os.close(bell.write_fd)


def test_a_directory_is_held_by_one_process_until_it_ends_however_it_ends(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, learner.shared.mapped as mapped\n"
        "mapped.hold_alone(pathlib.Path(sys.argv[1]))\n"
        "print('held', flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        fd = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
        holder.kill()
        hold_alone(tmp_path)
