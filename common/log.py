"""Logging: one format for people, one for a parent process that passes its children's lines on."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.logging import RichHandler


def setup_logging(level: str = "INFO", *, child: bool = False, console: Console | None = None) -> None:
    """Log to stderr; a child leaves the time to its parent, a terminal shares its screen with the live display."""
    if console is not None:
        handler: logging.Handler = RichHandler(console=console, show_path=False, log_time_format="%H:%M:%S")
        form = "%(name)s: %(message)s"
    else:
        handler = logging.StreamHandler(sys.stderr)
        form = "%(levelname)s %(name)s: %(message)s" if child else "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    logging.basicConfig(level=level, format=form, datefmt="%H:%M:%S", handlers=[handler], force=True)


def relog(name: str, line: str, last_level: int) -> int:
    """Log a line that a child wrote and return its level; a line without one continues the line before."""
    word, _, rest = line.partition(" ")
    level = logging.getLevelNamesMapping().get(word)
    logging.getLogger(name).log(level or last_level, "%s", rest if level else line)
    return level or last_level


class Seldom:
    """Lets something be logged at most once in so many seconds, and counts what was not."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._next, self._missed = -math.inf, 0

    def due(self) -> int | None:
        """How many were left out since the last one that was due; None: leave this one out too."""
        now = self._clock()
        if now < self._next:
            self._missed += 1
            return None
        missed, self._missed, self._next = self._missed, 0, now + self._seconds
        return missed
