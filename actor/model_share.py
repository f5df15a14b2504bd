"""The directory in which the workers of one actor host share models: in memory where that is possible."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)
MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it, for this user only
PREFIX: Final = "crossborder-models-"


class ModelShare:
    """A directory that is held by this process and removed at the end.

    A process that is killed leaves its directory behind. The next ``ModelShare`` of the same user removes it: the
    kernel has released the lock on the directory.

    Args:
        parent: of the directory; None: shared memory, or the temporary directory if the host has no shared memory.

    Raises:
        OSError: the directory cannot be made.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or (MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir()))
        for left in parent.glob(f"{PREFIX}*"):
            _remove_if_left(left)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            # Another process may take the new directory for one that was left behind, until this process holds it.
            try:
                self._fd = os.open(self.path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if self.path.is_dir():
                return
            os.close(self._fd)

    def close(self) -> None:
        """Remove the directory. Processes that have mapped its files keep them until they end."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def _remove_if_left(directory: Path) -> None:
    """Remove a directory whose process has ended."""
    try:
        if directory.stat().st_uid != os.getuid():
            return
        fd = os.open(directory, os.O_RDONLY)
    except OSError:  # Its process has just removed it, or it is another user's.
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    except BlockingIOError:
        log.debug("%s is in use", directory)
    finally:
        os.close(fd)
