"""The lock of a run directory, which one learner may use, also if hosts share the directory without common locks.

The kernel's lock ends with the process that holds it, but some file systems keep it from other hosts (NFS mounted with
``nolock``, Lustre with ``localflock``). So the holder also writes into the file ``lock`` on which host it runs, and
sets the time of this file again and again. A learner on another host that finds the file written watches this time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from common.errors import RunDirectoryError
from common.shared.mapped import read_boot_id

log = logging.getLogger(__name__)
_NAME: Final = "lock"
_SIGN_SECONDS: Final = 2.0
_WATCH_SECONDS: Final = 7.0
"""In this time, a learner that lives gives three signs."""
_END_SECONDS: Final = 5.0


class RunLock:
    """The exclusive lock of a run directory, from now on until ``close`` or the end of the process.

    Raises:
        RunDirectoryError: another learner uses the directory, on this host or on another.
        OSError: the lock's file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path / _NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(self._fd, fcntl.LOCK_EX, path)
            _require_no_signs(self._fd, path)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{read_boot_id()} {platform.node()}\n".encode(), 0)
            os.fsync(self._fd)  # Other hosts see it from now on.
        except BaseException:
            os.close(self._fd)
            raise
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._give_signs, name="run-lock", daemon=True)
        self._thread.start()

    @property
    def is_in_place(self) -> bool:
        """Whether the directory at the path is still the directory that was locked.

        Raises:
            OSError: its file system does not answer.
        """
        try:
            return os.path.samestat((self._path / _NAME).stat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    @property
    def is_removed(self) -> bool:
        """Whether the directory that was locked exists no more."""
        return os.fstat(self._fd).st_nlink == 0

    def _give_signs(self) -> None:
        failed = False
        while not self._is_closed.wait(_SIGN_SECONDS):
            try:
                os.utime(self._fd)
                failed = False
            except OSError as error:
                if not failed:
                    log.warning(
                        "%s: a learner on another host would not see that this one lives: %s", self._path, error
                    )
                failed = True

    def close(self) -> None:
        """Release the lock."""
        self._is_closed.set()
        self._thread.join(_END_SECONDS)
        if (
            self._thread.is_alive()
        ):  # A file system that hangs holds it. The process, which ends now, releases the lock.
            return
        with suppress(OSError):  # Then the next learner, if it is on another host, watches for signs in vain.
            os.ftruncate(self._fd, 0)
        os.close(self._fd)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Lock the directory of an earlier run for reading: within this context no learner can use it.

    Raises:
        RunDirectoryError: a learner uses the directory, or it is not the directory of a run.
    """
    try:
        fd = os.open(path / _NAME, os.O_RDONLY)
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read as a run's directory: lock: {error.strerror}") from error
    try:
        _lock(fd, fcntl.LOCK_SH, path)
        _require_no_signs(fd, path)
        yield
    finally:
        os.close(fd)


def require_free(path: Path) -> None:
    """Check that no learner with common locks uses a run directory, before anything expensive begins.

    Raises:
        RunDirectoryError: a learner uses it.
    """
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # ``RunDir`` reports such a directory.
        fd = os.open(path / _NAME, os.O_RDONLY)
        try:
            _lock(fd, fcntl.LOCK_SH, path)
        finally:
            os.close(fd)


def _lock(fd: int, kind: int, path: Path) -> None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunDirectoryError(f"{path}: another learner is using this run directory") from None


def _require_no_signs(fd: int, path: Path) -> None:
    """Check that no learner on another host, whose lock this host does not see, uses the directory."""
    boot, _, host = os.pread(fd, 512, 0).decode(errors="replace").strip().partition(" ")
    if boot in ("", read_boot_id()):
        return  # The last learner ended in order, or it ran in this boot of this host, whose locks are common.
    log.info("%s: the last learner, on host %r, did not end in order: watching whether it lives", path, host)
    before = _last_sign(path)
    time.sleep(_WATCH_SECONDS)
    if _last_sign(path) != before:
        raise RunDirectoryError(f"{path}: a learner on host {host!r} is using this run directory")


def _last_sign(path: Path) -> int:
    """When the holder gave its last sign, in ns of its clock; a file that is opened anew is not in NFS's cache."""
    fd = os.open(path / _NAME, os.O_RDONLY)
    try:
        return os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)
