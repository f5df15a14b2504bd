"""Files mapped by several processes, and directories that one process at a time may hold."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import RunDirectoryError
from common.shared.mapped import Word, Words, hold_until_exit, holding_alone, identify, map_file


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
    with pytest.raises(RunDirectoryError, match=r"g: a file of \d+ bytes that processes share cannot be made: "):
        map_file(tmp_path / "g", 1 << 60, create=True)


def test_a_directory_is_held_by_one_process_until_it_ends_however_it_ends(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, common.shared.mapped as mapped\n"
        "mapped.hold_until_exit(pathlib.Path(sys.argv[1]))\n"
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
        with holding_alone(tmp_path, seconds=60.0):
            pass  # It waits for the holder's end.
        hold_until_exit(tmp_path)


def test_no_process_writes_beside_one_that_holds_the_directory(tmp_path: Path) -> None:
    with (
        holding_alone(tmp_path),
        pytest.raises(RunDirectoryError, match="the ingest process of a learner that was killed still holds it"),
        holding_alone(tmp_path),
    ):
        pass
    with holding_alone(tmp_path):
        pass  # It was given back.


def test_a_kill_while_a_file_is_made_does_not_stop_it_from_being_made_later(tmp_path: Path) -> None:
    (tmp_path / ".f.part").write_bytes(b"of a process that was killed")
    assert map_file(tmp_path / "f", 16, create=True)[:] == bytes(16)
    assert not (tmp_path / ".f.part").exists()


def test_a_file_is_identified_alike_by_all_processes_and_its_copy_otherwise(tmp_path: Path) -> None:
    path, copy = tmp_path / "a", tmp_path / "b"
    path.write_text("x")
    shutil.copy2(path, copy)
    for this_boot in (False, True):
        script = (
            f"from pathlib import Path; from common.shared.mapped import identify; "
            f"print(identify(Path({str(path)!r}), this_boot={this_boot}))"
        )
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
        assert 0 < identify(path, this_boot=this_boot) == int(other.stdout) < 2**63
        assert identify(copy, this_boot=this_boot) != identify(path, this_boot=this_boot)
    assert identify(path, this_boot=True) != identify(path, this_boot=False)


MOUNTED_AGAIN = """
import sys
from pathlib import Path
from common.shared.mapped import identify
for path in sys.argv[1:]:
    print(identify(Path(path), this_boot=False), identify(Path(path), this_boot=True))
"""


def test_a_mount_anew_may_have_lost_writes_as_another_boot(tmp_path: Path) -> None:
    first, again = (tmp_path / name for name in ("first", "again"))
    for directory in (first, again):
        directory.mkdir()
    (first / "file").write_text("x")
    command = f'mount --bind {first} {again} && exec {sys.executable} -c "$0" {first}/file {again}/file'
    words = ["unshare", "--mount", "sh", "-c", command, MOUNTED_AGAIN]
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    if done.returncode != 0:
        pytest.skip(f"this user mounts nothing here: {done.stderr}")
    (closed, open_), (closed_again, open_again) = (line.split() for line in done.stdout.splitlines())
    assert closed == closed_again
    assert open_ != open_again


class TwoWords(Words):
    N_WORDS = 2
    count = Word(0)
    mean = Word(1, float)


def test_words_are_numbers_that_every_mapping_of_the_file_sees(tmp_path: Path) -> None:
    written = TwoWords(map_file(tmp_path / "words", 32, create=True), 16)
    read = TwoWords(map_file(tmp_path / "words", 32, create=False, writable=False), 16)
    written.count, written.mean = -(2**40), -1.5
    assert (read.count, read.mean) == (-(2**40), -1.5)
