"""A run's directory from its mirror, on a host that has nothing of the run."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from common.errors import RunDirectoryError, TakenOverError
from learner.replay.memory import ReplayMemory
from learner.storage.mirror import Mirror, Past
from learner.storage.mirror_store import MirrorStore
from learner.storage.mirrored_state import MirroredState
from learner.storage.restoring import has_run, restore
from tests.learner.replay.memories import check_linked
from tests.learner.storage.mirrored import RUN_ID, MirroredRun, keep_nothing


def test_an_empty_mirror_has_no_run(tmp_path: Path) -> None:
    mirror = Mirror(f"file://{tmp_path}/none")
    assert not has_run(mirror)
    with pytest.raises(RunDirectoryError, match="expected the mirror of a run, found no whole state"):
        restore(mirror, tmp_path / "run")


def test_files_of_others_are_not_removed(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path)
    run.mirroring.write_state()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(RunDirectoryError, match=r"expected a new run directory to restore to, found thesis.tex"):
        restore(Mirror(run.url), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()


@pytest.mark.parametrize("path", ["../outside", "/outside", "best/../../outside"])
def test_no_file_is_written_outside_the_run_directory(tmp_path: Path, path: str) -> None:
    run = MirroredRun(tmp_path)
    run.mirroring.write_state()
    newest = run.mirror.find_newest()
    assert newest is not None
    run.mirror.write(dataclasses.replace(newest, files={**newest.files, path: newest.files["run.json"]}))
    with pytest.raises(RunDirectoryError, match="expected the path of a file in a run directory"):
        restore(Mirror(run.url), tmp_path / "run")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "run").exists()


def test_what_is_damaged_leaves_no_directory_and_is_named(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path)
    run.store(10)
    run.mirroring.write_state()
    for item in (tmp_path / "mirror" / "objects").iterdir():
        content = bytearray(item.read_bytes())
        content[len(content) // 2] ^= 1
        item.write_bytes(content)
    with pytest.raises(RunDirectoryError, match="cannot be restored to"):
        restore(Mirror(run.url), tmp_path / "run")
    assert not list(tmp_path.glob("*run*"))


class Joining(Mirror):
    """A mirror whose former owner joins segments, and removes their objects, before the first object is read."""

    def __init__(self, run: MirroredRun) -> None:
        super().__init__(run.url)
        self._run, self._is_first = run, True

    def get(self, name: str, target: BinaryIO) -> None:
        if self._is_first:
            self._is_first = False
            for number in range(3):
                self._run.store(30)
                (self._run.run / "metrics.csv").write_text(str(number))
                self._run.mirror.require_owner = lambda: None  # type: ignore[method-assign] # It has not looked yet.
                self._run.mirroring.write_state()
        super().get(name, target)


def test_if_an_object_goes_while_it_is_read_a_newer_state_is_read(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path, capacity=64)
    run.store(3)
    run.mirroring.write_state()
    restore(Joining(run), tmp_path / "run")
    check_linked(ReplayMemory.open_saved(tmp_path / "run" / "shared" / "replay"))


class Overtaken(Mirror):
    """A mirror that another host claims while its run is restored."""

    def get(self, name: str, target: BinaryIO) -> None:
        super().get(name, target)
        Mirror(self.url).claim(RUN_ID, Past(self.epoch), keep_nothing)


def test_of_hosts_that_restore_a_run_the_last_one_goes_on(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path)
    run.mirroring.write_state()
    with pytest.raises(TakenOverError, match="another learner has taken over this run"):
        restore(Overtaken(run.url), tmp_path / "run")
    assert not list(tmp_path.glob("*run*"))


class Outrun(Mirror):
    """A mirror that another host claims, and writes its first state to, after the newest state was read first."""

    other: Mirror | None = None

    def find_newest(self) -> MirroredState | None:
        found = super().find_newest()
        if self.other is None:
            self.other = Mirror(self.url)
            newest = self.other.claim(RUN_ID, Past(sys.maxsize), keep_nothing)
            assert newest is not None
            self.other.write(dataclasses.replace(newest, epoch=self.other.epoch))
        return found


def test_a_host_that_restores_a_run_goes_on_from_the_first_state_of_the_one_before_it(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path)
    run.mirroring.write_state()
    mirror = Outrun(run.url)
    restore(mirror, tmp_path / "run")
    mirror.require_owner()
    assert mirror.other is not None
    with pytest.raises(TakenOverError):
        mirror.other.require_owner()


class ReadOnlyStore(MirrorStore):
    """A place to which nothing can be written."""

    def write(self, directory: str, name: str, content: bytes) -> None:
        with self._reaching():
            raise OSError(30, "Read-only file system", f"{directory}/{name}")


def test_a_mirror_that_can_only_be_read_is_copied_first_and_its_learner_goes_on(tmp_path: Path) -> None:
    run = MirroredRun(tmp_path)
    run.mirroring.write_state()
    mirror = Mirror(run.url)
    mirror.store = ReadOnlyStore(run.url)
    with pytest.raises(RunDirectoryError, match=r"Read-only file system.*copy it, .*--resume file:///COPY"):
        restore(mirror, tmp_path / "run")
    run.mirror.require_owner()
    shutil.copytree(tmp_path / "mirror", tmp_path / "copy")
    restore(Mirror(f"file://{tmp_path}/copy"), tmp_path / "run")
    run.mirror.require_owner()
