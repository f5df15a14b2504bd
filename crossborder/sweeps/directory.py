"""The directory of a sweep: its configuration, its trials with their runs, its results.

    SWEEP/sweep.yaml, config.yaml      the sweep, and the configuration before anything is chosen
    SWEEP/study.journal                the trials, unless the user names another storage
    SWEEP/study.name                   the name of the sweep's study in that storage
    SWEEP/trials/0007/config.yaml      the configuration of a trial
    SWEEP/trials/0007/seed-3/          one of its runs, as any other run; output-3.log is its output
    SWEEP/results.csv, best.yaml       all trials, and the configuration of the best one

Several processes may work on it, on several hosts if they share a file system whose locks work between hosts.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from common.config.nested import to_yaml
from common.config.run_config import dump_config, load_config
from common.errors import ConfigError, RunDirectoryError
from common.shared.mapped import wait_for_lock
from crossborder.sweeps.sweep_config import SweepConfig, base_config, load_sweep
from learner.shared.durable import naming_write_errors, replace_text

LOCK_SECONDS: Final = 60.0
_MAY_CHANGE = ("trials", "prune", "config")
"""Settings that may differ when a sweep goes on; what the file ``config`` says may not, but the file may be moved."""


def lock_alone(fd: int, path: Path) -> None:
    """Lock an open file, for the moment that a change of the sweep takes.

    Raises:
        RunDirectoryError: another process has held it for ``LOCK_SECONDS``; it was stopped, or its disk hangs.
    """
    if not wait_for_lock(fd, LOCK_SECONDS):
        raise RunDirectoryError(f"{path}: another process has held it for {LOCK_SECONDS:g} s: end that one")


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """A context in which no other thread or process is in such a context of the directory; see ``lock_alone``."""
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock_alone(lock, directory / "lock")
        yield
    finally:
        os.close(lock)


class SweepDirectory:
    """The directory of a sweep, begun or found.

    Raises:
        ConfigError: the directory has another sweep.
        RunDirectoryError: it cannot be written.
    """

    def __init__(self, path: Path, sweep: SweepConfig) -> None:
        self.path, self.sweep = path, sweep
        with naming_write_errors(path):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self.alone():
                self._begin_or_find()

    def _begin_or_find(self) -> None:
        file = self.path / "sweep.yaml"
        # Without these, the file is a user's own. The sweeps of the former release have no file of the study's name.
        if file.exists() and (self._study_file.exists() or (self.path / "trials").exists()):
            before, now = load_sweep(file).model_dump(mode="json"), self.sweep.model_dump(mode="json")
            adds_trials = not now["space"] and {*before["seeds"]} <= {*now["seeds"]}
            may_change = (*_MAY_CHANGE, "seeds") if adds_trials else _MAY_CHANGE
            changed = [key for key in now if key not in may_change and before[key] != now[key]]
            if not changed and self._has_another_config():
                changed = ["config"]
            if changed:
                raise ConfigError(
                    f"{self.path}: expected the sweep that began there, found another {', '.join(changed)}; "
                    "begin a new sweep in another directory (--dir)"
                )
        else:
            # A sweep that was killed while it began has a study's name; a config.yaml alone is that of a run or a user.
            begun = {"lock", self._study_file.name}
            if self._study_file.exists():
                begun.add(self.base.name)
            others = sorted(name for each in self.path.iterdir() if (name := each.name) not in begun and name[0] != ".")
            if others:
                raise RunDirectoryError(
                    f"{self.path}: expected a sweep ({self._study_file.name}) or an empty directory, found "
                    f"{', '.join(others[:5])}; begin the sweep in another directory (--dir)"
                )
            replace_text(self._study_file, f"{self.path.resolve().name}-{secrets.token_hex(4)}\n")
            replace_text(self.base, dump_config(base_config(self.sweep)))
        replace_text(file, to_yaml(self.sweep.model_dump(mode="json")))

    def _has_another_config(self) -> bool:
        """Whether the sweep's file, if it is still there, says something else than when the sweep began."""
        if not self.sweep.config.exists():
            return False
        now, before = base_config(self.sweep), load_config(self.base)
        return now.model_dump(mode="json") != before.model_dump(mode="json")

    @property
    def base(self) -> Path:
        """The file with the configuration before anything is chosen."""
        return self.path / "config.yaml"

    @property
    def _study_file(self) -> Path:
        return self.path / "study.name"

    def read_study_name(self) -> str:
        """The name of the sweep's study in Optuna's storage.

        A database may have the trials of another sweep whose directory has the same name, and a directory may be moved.
        """
        if not self._study_file.exists():  # The sweep began before there was this file.
            return self.path.resolve().name
        return self._study_file.read_text().strip()

    def alone(self) -> AbstractContextManager[None]:
        """A context in which no other thread or process changes the sweep; see ``lock_alone``."""
        return alone_in(self.path)

    def place_of(self, number: int) -> Path:
        """The directory of a trial, made if it is not there."""
        place = self.path / "trials" / f"{number:04d}"
        place.mkdir(parents=True, exist_ok=True)
        return place

    def claim(self, number: int) -> int | None:
        """Lock a trial; None if a process works on it.

        Returns:
            A file descriptor. The trial is locked until this process and all that inherited the descriptor have closed
            it. So a trial is free as soon as its last process has ended, also by a kill.
        """
        lock = os.open(self.place_of(number) / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{socket.gethostname()} {os.getpid()}".encode(), 0)
        return lock

    def is_abandoned(self, number: int) -> bool:
        """Whether the process that began an unfinished trial has died here.

        It died before it locked the trial, or its run still writes a checkpoint and holds the lock.
        """
        lock = self.place_of(number) / "lock"
        if not lock.exists():
            return True
        host, _, pid = lock.read_text().partition(" ")
        if host != socket.gethostname():
            return False
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # It lives, as a process of another user.
            return False
        return False
