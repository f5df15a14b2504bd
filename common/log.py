"""Logging: lines for people, or JSON for machines; a child's records reach its parent whole."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal

from rich.console import Console
from rich.logging import RichHandler

from common.clocks import Bucket

LogFormat = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    """One object per line: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, and ``exception`` if any."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        exception = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        return json.dumps({**entry, "exception": exception} if exception else entry)


def setup_logging(level: str = "INFO", form: LogFormat = "text", console: Console | None = None) -> None:
    """Log to stderr; with a console, a terminal shares its screen with the live display. A child logs JSON."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
    if form == "json":
        formatter = JsonFormatter()
    elif console is not None:
        handler = RichHandler(console=console, show_path=False, log_time_format="%H:%M:%S")
        formatter = logging.Formatter("%(name)s: %(message)s")
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if form == "json":
        sys.excepthook = _log_uncaught
        logging.captureWarnings(True)


class AtMost(logging.Filter):
    """Lets so many records a second pass, after some at once; the next one then tells how many were left out.

    For a process that strangers can make log.
    """

    def __init__(self, rate: float, at_once: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._bucket, self._missed = Bucket(rate, at_once, clock), 0

    def filter(self, record: logging.LogRecord) -> bool:
        passes = record.levelno >= logging.CRITICAL or self._bucket.take()
        if passes and self._missed:
            record.msg, record.args = f"{record.getMessage()} ({self._missed} lines before it were left out)", None
        self._missed = 0 if passes else self._missed + 1
        return passes


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logging.getLogger("uncaught").critical("%s", error, exc_info=(kind, error, traceback))


def relog(child: str, line: str) -> None:
    """Log what a child wrote to stderr: a record of its log as one of ours, anything else as information."""
    try:
        entry = json.loads(line)
        level, name = logging.getLevelNamesMapping()[entry["level"]], f"{child}.{entry['logger']}"
        given = {"msg": str(entry["message"]), "exc_text": entry.get("exception")}
    except (ValueError, LookupError, TypeError):  # Somebody else's words.
        logging.getLogger(child).info("%s", line)
        return
    record = logging.makeLogRecord({"name": name, "levelno": level, "levelname": entry["level"], **given})
    if logging.getLogger(name).isEnabledFor(level):
        logging.getLogger(name).handle(record)


def quoted(text: str) -> str:
    """A stranger's text for our log: its lines are marked, so that none passes for ours, and hold no control codes."""
    lines = ("".join(c if c.isprintable() else "?" for c in line) for line in text.splitlines())
    return "\n".join(f"| {line}" for line in lines)


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
