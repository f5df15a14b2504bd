"""The run directory: made for one run, locked while a learner uses it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from common.errors import RunDirectoryError


def default_run_dir(name: str) -> Path:
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


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
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunDirectoryError(f"{path}: another learner is using this run directory") from None
            if self.shared.exists():
                raise RunDirectoryError(f"{path}: expected a new run directory, found a run; name another run_dir")
            self.shared.mkdir()
        except OSError as error:
            raise RunDirectoryError(f"{path}: cannot be written: {error.strerror}") from error

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
