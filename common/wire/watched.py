"""Values read from files, and read again when the files change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from common.errors import ConfigError

log = logging.getLogger(__name__)
T = TypeVar("T")


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file does; None while there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Watched(Generic[T]):
    """What ``read`` made of some files. A change that it refuses is logged once, and the value before stays.

    Args:
        paths: the files.
        read: makes the value.

    Raises:
        ConfigError: the files cannot be read at the start.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        self._paths, self._read = paths, read
        self._stamps = self._look()
        self._value = read()

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [stamp_of(path) for path in self._paths]

    def get(self) -> T:
        """The value as of now: the same object as before unless a file has changed."""
        stamps = self._look()
        if stamps != self._stamps:
            self._stamps = stamps  # Looked at before reading: what is written meanwhile shows as one more change.
            try:
                self._value = self._read()
            except ConfigError as error:
                log.warning("a changed file is not used yet: %s", error)
            else:
                log.info("read again: %s", ", ".join(map(str, self._paths)))
        return self._value
