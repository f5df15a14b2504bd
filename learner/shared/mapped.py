"""Files that several processes map into their memory, and directories that one process holds alone."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from common.errors import RunDirectoryError

_fence_lock = threading.Lock()
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def fence() -> None:
    """Order all stores and loads before it against all after it, as other processes see them.

    Python has no barrier of its own; releasing and acquiring a lock twice is one on x86 and on ARM.
    """
    with _fence_lock:
        pass
    with _fence_lock:
        pass


def map_file(path: Path, size: int, *, create: bool, writable: bool = True) -> mmap.mmap:
    """Map a file shared; a new one is allocated at once, so that a full disk is found out here, and synced.

    A kill leaves a new file whole or not there at all.

    Raises:
        RunDirectoryError: it cannot be created, opened or has another size.
    """
    try:
        if create:
            _allocate(path, size)
        fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            if os.fstat(fd).st_size != size:
                raise RunDirectoryError(f"{path}: expected {size} bytes, found {os.fstat(fd).st_size}")
            return mmap.mmap(fd, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        finally:
            os.close(fd)
    except OSError as error:
        raise RunDirectoryError(f"{path}: {size} bytes of shared memory: {error.strerror}") from error


def boot_id() -> int:
    """A number that differs from one boot of the host to the next, never 0; always 1 where the kernel has none.

    Processes of one boot see all that was written before them; after another boot, what was not synced may be missing.
    """
    try:
        return int(uuid.UUID(_BOOT_ID.read_text().strip()).int >> 65) or 1  # It fits a signed word.
    except OSError:
        return 1


def _allocate(path: Path, size: int) -> None:
    if path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    part = path.with_name(f".{path.name}.part")
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        os.fsync(fd)
    except OSError:
        part.unlink()
        raise
    finally:
        os.close(fd)
    part.rename(path)


@contextmanager
def held_alone(directory: Path) -> Iterator[None]:
    """Be the only process that writes to the replay in ``directory``, where no ingest process does it.

    Raises:
        RunDirectoryError: the ingest process of a trainer that was killed has not ended yet.
    """
    fd = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirectoryError(
                f"{directory}: the ingest process of a learner that was killed still holds it; it ends within seconds: "
                "try again"
            ) from None
        yield
    finally:
        os.close(fd)


def hold_alone(directory: Path) -> None:
    """Be the only process that holds ``directory``, until this one ends; waits for the one before to end.

    A killed trainer's ingest lives on for a moment: whoever resumes the run must not write beside it.
    """
    fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_EX)
