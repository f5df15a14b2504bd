"""The power fails while pages are dirty: the run goes on with what reached the disk, and no torn row is ever drawn."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from learner.replay.memory import ReplayMemory
from learner.replay.ring import read_ring
from tests.chaos.audit import Audit, audit
from tests.chaos.fleet import Fleet
from tests.chaos.report import scratch, tell
from tests.conftest import signal_each, with_descendants
from tests.e2e.test_by_hand import ENDLESS

N_ACTORS: Final = 3
CAPACITY: Final = 50_000
"""So few that rows are overwritten between two cuts."""
CHECKPOINT_SECONDS: Final = 10.0
DISK_MIB: Final = 300
BOOT: Final = 6
"""The word of the replay's header that names the files and the boot of the host."""


class Disk:
    """An ext4 file system in a file, mounted. What is in the file is what a power cut would leave.

    Args:
        directory: where its file is.
        at: where it is mounted.

    Raises:
        subprocess.CalledProcessError: it cannot be mounted here; that takes root and loop devices.
    """

    def __init__(self, directory: Path, at: Path) -> None:
        self._image, self.at = directory / "disk.img", at
        at.mkdir()
        with self._image.open("wb") as file:
            file.truncate(DISK_MIB << 20)
        _run("mkfs.ext4", "-q", "-F", self._image)
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", self._image, self.at)

    def photograph(self) -> None:
        """Copy what is on the disk now."""
        _run("cp", "--sparse=always", self._image, self._image.with_suffix(".copy"))

    def come_back(self) -> None:
        """What was in memory is gone: the disk is what was photographed. Nobody may be using it."""
        self.unmount()
        self._image.with_suffix(".copy").rename(self._image)
        self._mount()

    def unmount(self) -> None:
        """At once also where a file is still mapped, as by the exercise itself."""
        _run("umount", "--lazy", self.at)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def disk() -> Iterator[Disk]:
    """A disk of its own, beside a scratch directory that stays after a failure."""
    with scratch() as directory:
        found = Disk(directory, directory / "mounted")
        try:
            yield found
        finally:
            found.unmount()


def cut(fleet: Fleet, disk: Disk) -> int:
    """Let the power of the learner's host fail, and leave the learner dead.

    Returns:
        Steps that were stored.
    """
    trainer = fleet.server.process.pid
    pids = with_descendants(trainer)
    signal_each(pids, signal.SIGSTOP)  # So that what is stored is what was stored at the cut.
    stored = fleet.standing().stored
    disk.photograph()
    signal_each(pids, signal.SIGKILL)
    fleet.server.wait()
    disk.come_back()
    (fleet.run_dir / "endpoints.json").unlink()  # It is of the learner that is dead.
    header = np.memmap(fleet.run_dir / "shared" / "replay" / "header", "<i8", "r+")
    header[BOOT] ^= 1  # This host has not been started anew, as the real one would have been.
    return stored


def torn(run_dir: Path) -> Audit:
    """What is wrong with the rows that count. Lost are also those that a power cut took."""
    memory = ReplayMemory.open_saved(run_dir / "shared" / "replay")
    assert memory.links is not None
    first, end = memory.first(), memory.committed
    rows = {name: read_ring(column, first, end) for name, column in memory.columns.items()}
    previous = read_ring(memory.links.previous, first, end)
    overwritten = memory.first() - first  # Meanwhile: a learner may be going on.
    return audit({name: column[overwritten:] for name, column in rows.items()}, {}, previous[overwritten:])


def cut_power(cuts: int, seed: int, shortest: float, longest: float) -> dict[str, Any]:
    """So many power cuts of one run, each after a random time in seconds; its figures.

    Raises:
        AssertionError: the run cannot be resumed, an actor does not go on, or a row is torn or doubled.
    """
    rng, taken = random.Random(seed), []
    replay = {"capacity": CAPACITY, "samples_per_insert": 32}
    trainer = {**ENDLESS, "checkpoint_seconds": CHECKPOINT_SECONDS}
    with disk() as where, scratch() as directory:
        with Fleet(directory, N_ACTORS, run_dir=where.at / "run", replay=replay, trainer=trainer) as fleet:
            fleet.ready()
            for number in range(1, cuts + 1):
                seconds = rng.uniform(shortest, longest)
                time.sleep(seconds)  # The moment is what is random here.
                stored = cut(fleet, where)
                fleet.resume()
                fleet.ready()
                found, left = torn(fleet.run_dir), fleet.resumed_with()
                assert (found.torn, found.doubled, found.mislinked) == (0, 0, 0), found
                taken.append({"seconds": seconds, "stored": stored, "left": left, "lost": stored - left})
                tell(f"cut {number} of {cuts}, seed {seed}, after {seconds:.0f} s: {taken[-1]}")
            fleet.stop()
        found = torn(where.at / "run")
    assert (found.torn, found.doubled, found.mislinked) == (0, 0, 0), found
    return {"cuts": cuts, "seed": seed, "torn": found.torn, "doubled": found.doubled, "taken": taken}
