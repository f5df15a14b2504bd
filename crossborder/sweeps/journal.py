"""The file with a sweep's trials, which stays whole when a process that writes to it is killed or the disk is full."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock


def open_journal(path: Path) -> JournalStorage:
    """Open the file, or make it."""
    return JournalStorage(JournalFileBackend(str(path), _WholeLines(str(path))))


class _WholeLines(JournalFileOpenLock):
    """Optuna's lock of the file, held by the kernel: a file as a lock would outlive a process that is killed.

    Optuna adds lines without a look at the end of the file. Behind half a line, they could never be read again.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._path, self._fd = path, -1

    def acquire(self) -> bool:
        """Wait for the lock; cut off the half line that a process left which could not write the other half."""
        fd = os.open(self._path, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            os.ftruncate(fd, os.pread(fd, size, 0).rfind(b"\n") + 1)
        self._fd = fd  # After the wait, since the threads of a process share this object.
        return True

    def release(self) -> None:
        """Let the next one write."""
        os.close(self._fd)
