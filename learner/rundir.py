"""The run directory: made for one run, locked while a learner uses it, taken up again when the run is resumed."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from common.errors import RunDirectoryError
from learner.durable import replace_text


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


@dataclass(frozen=True)
class RunIdentity:
    """Which run it is, and how many times it has been started: 1, 2, 3."""

    run_id: str
    incarnation: int


class RunDir:
    """A fresh directory with private permissions, or that of a run that is to go on.

    Args:
        path: where it is.
        resume: go on with the run in it, if there is one.

    Raises:
        RunDirectoryError: it cannot be made, another learner uses it, it holds a run although none is to be resumed, or
            one that cannot be.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self.path = path
        self.shared = path / "shared"
        self.identity = RunIdentity(secrets.token_hex(8), 1)
        self._has_begun = False
        with self.writing():
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                _lock(self._lock, fcntl.LOCK_EX, self.path)
                self._resume() if resume and self.shared.exists() else self._claim()
            except BaseException:
                os.close(self._lock)
                raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around whatever writes here.

        Raises:
            RunDirectoryError: for an OSError.
        """
        try:
            yield
        except OSError as error:
            raise RunDirectoryError(f"{self.path}: cannot be written: {error.strerror}") from error

    def _claim(self) -> None:
        if self.shared.exists():
            raise RunDirectoryError(
                f"{self.path}: expected a new run directory, found a run; "
                "go on with it (--resume) or name another run_dir"
            )
        self.shared.mkdir()

    def _resume(self) -> None:
        try:
            found = json.loads((self.path / "run.json").read_text())
            self.identity = RunIdentity(found["run_id"], found["incarnation"] + 1)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise RunDirectoryError(
                f"{self.path}: its run did not come as far as to be resumed ({error}): remove it, or name another"
            ) from error
        (self.path / "endpoints.json").unlink(missing_ok=True)

    @property
    def is_resumed(self) -> bool:
        return self.identity.incarnation > 1

    def begin(self) -> None:
        """From here on the run can be resumed, and no later start of it will have this incarnation."""
        self.write_text("run.json", json.dumps(asdict(self.identity), indent=2) + "\n")
        self._has_begun = True

    def write_text(self, name: str, text: str) -> None:
        """Written whole or not at all."""
        with self.writing():
            replace_text(self.path / name, text)

    def write_json(self, name: str, value: object) -> None:
        """Written whole or not at all: somebody may be waiting for the file."""
        part = self.path / f".{name}.part"
        with self.writing():
            part.write_text(json.dumps(value, indent=2) + "\n")
            part.rename(self.path / name)

    def close(self) -> None:
        """Give the lock back; a run that never began leaves none behind that would have to be removed."""
        if not (self._has_begun or self.is_resumed):
            shutil.rmtree(self.shared, ignore_errors=True)
        os.close(self._lock)
