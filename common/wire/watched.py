"""Values that are read from files, and read again when the files change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from common.errors import ConfigError

log = logging.getLogger(__name__)
T = TypeVar("T")


Stamp = tuple[int, int, int, int]
"""Of a file: another one once its content, or who may read it, has changed."""


def stamp_of(path: Path) -> Stamp | None:
    """The times of the last changes of content and of rights, the size and the inode of a file; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


class Watched(Generic[T]):
    """A value that ``read`` makes from some files. If ``read`` refuses changed files, the old value stays.

    Args:
        paths: the files.
        read: makes the value; it raises a ConfigError to refuse the files, which is logged once for each change.

    Raises:
        ConfigError: ``read`` refuses the files when this object is made.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        self._paths, self._read = paths, read
        self._stamps = self._look()
        self._value = read()

    def _look(self) -> list[Stamp | None]:
        return [stamp_of(path) for path in self._paths]

    def get(self) -> T:
        """The present value: the same object as before unless a file has changed."""
        stamps = self._look()
        if stamps != self._stamps:
            # The stamps are older than the reading below. A file that is written during the reading therefore has
            # another stamp at the next call, and is read once more.
            self._stamps = stamps
            try:
                self._value = self._read()
            except ConfigError as error:
                log.warning("a changed file is not used yet: %s", error)
            else:
                log.info("read again: %s", ", ".join(map(str, self._paths)))
        return self._value
