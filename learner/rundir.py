"""The run directory: made for one run, locked while a learner uses it."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import RunDirectoryError


def default_run_dir(name: str) -> Path:
    """A new name under ``runs/``, also for two runs that begin in the same second."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Read an earlier run's directory; no learner uses it meanwhile.

    Raises:
        RunDirectoryError: a learner is using it, or it is no run's directory.
    """
    try:
        lock = os.open(path / "lock", os.O_RDONLY)
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read as a run's directory: lock: {error.strerror}") from error
    try:
        _lock(lock, fcntl.LOCK_SH, path)
        yield
    finally:
        os.close(lock)


def _lock(fd: int, kind: int, path: Path) -> None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunDirectoryError(f"{path}: another learner is using this run directory") from None


class RunDir:
    """A fresh directory with private permissions.

    Raises:
        RunDirectoryError: it cannot be made, holds a run already, or another learner uses it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shared = path / "shared"
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self._claim()
            except BaseException:
                os.close(self._lock)
                raise
        except OSError as error:
            raise RunDirectoryError(f"{path}: cannot be written: {error.strerror}") from error

    def _claim(self) -> None:
        _lock(self._lock, fcntl.LOCK_EX, self.path)
        if self.shared.exists():
            raise RunDirectoryError(f"{self.path}: expected a new run directory, found a run; name another run_dir")
        self.shared.mkdir()

    def write_text(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def write_json(self, name: str, value: object) -> None:
        """Written whole or not at all: somebody may be waiting for the file."""
        part = self.path / f".{name}.part"
        part.write_text(json.dumps(value, indent=2) + "\n")
        part.rename(self.path / name)

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._lock)
