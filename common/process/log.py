"""Logging, as lines for people or JSON for machines. A child logs JSON, which its parent logs again as records."""

from __future__ import annotations

import faulthandler
import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal

from common.errors import FaultError
from common.process.clocks import Bucket
from common.process.standard_streams import unblock_stderr

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger(__name__)
LogFormat = Literal["text", "json"]
_identity: dict[str, str | int] = {}
"""The ids of this process's run and actor, if it is an actor's process; set by ``identify``."""
_KEYS = ("run_id", "actor_id")
_OWN_PACKAGES = ("actor", "common", "crossborder", "learner")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FAULTS, _OURS = "PYTHONFAULTHANDLER", "crossborder"
_FAULTS_ARE_OURS: Final = os.environ.get(_FAULTS) == _OURS
"""Whether a process of ours has started this one, which then shows all threads until it is told otherwise."""
_GRPC_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}


def identify(*, run_id: str, actor_id: int) -> None:
    """Name this actor and its run in every later line of this process's log."""
    global _identity  # noqa: PLW0603 - replaced as a whole: other threads may be formatting a line
    _identity = {"run_id": run_id, "actor_id": actor_id}


def _identity_of(record: logging.LogRecord) -> Mapping[str, str | int]:
    """The identity of the child that wrote a record, or of this process."""
    of_child: Mapping[str, str | int] = getattr(record, "identity", {})
    return of_child or _identity


class TextFormatter(logging.Formatter):
    """Lines for people; those of an actor begin with the ids of its run and of the actor.

    A record may hold texts of strangers, so its control characters are escaped, and all lines but its first are
    indented: no text in a record looks like another record.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n    ".join(escape_lines(super().format(record)))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        identity = _identity_of(record)
        record.who = f"[run {identity['run_id']} actor {identity['actor_id']}] " if identity else ""
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, ``exception`` if any.

    The lines of an actor that has joined also have its ``run_id`` and ``actor_id``.
    """

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_identity_of(record),
        }
        exception = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        return json.dumps({**entry, "exception": exception} if exception else entry)


def setup_logging(level: str = "INFO", form: LogFormat = "text", console: Console | None = None) -> None:
    """Log to stderr. If ``form`` is json, uncaught exceptions and warnings are logged as JSON too.

    A log that nobody reads stops no thread; see ``common.process.standard_streams``.

    If native code crashes, in this process or in a Python that it starts, the Python stack of the thread that crashed
    comes to stderr as plain lines. An empty variable ``PYTHONFAULTHANDLER`` overrules that.
    """
    if os.environ.setdefault(_FAULTS, _OURS) and (_FAULTS_ARE_OURS or not faulthandler.is_enabled()):
        faulthandler.enable(2, all_threads=False)  # The stacks of gRPC's threads and of ours would hide that one.
    unblock_stderr(lambda lines: _tell_left_out(formatter, lines))
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    formatter: logging.Formatter = TextFormatter("%(asctime)s %(levelname)-7s %(who)s%(name)s: %(message)s", "%H:%M:%S")
    if form == "json":
        formatter = JsonFormatter()
    elif console is not None:
        from rich.logging import RichHandler  # noqa: PLC0415 - only learners have a live display and the package rich

        handler = RichHandler(console=console, show_path=False, log_time_format="%H:%M:%S")
        formatter = TextFormatter("%(who)s%(name)s: %(message)s")
    handler.setFormatter(formatter)
    if level != "DEBUG":
        handler.addFilter(_is_no_chatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if form == "json":
        sys.excepthook = _log_uncaught
        logging.captureWarnings(True)


def _is_no_chatter(record: logging.LogRecord) -> bool:
    """Whether a record is a warning, or no record of an installed library; users' own parts are none."""
    is_library = "-packages/" in record.pathname and record.name.partition(".")[0] not in _OWN_PACKAGES
    return record.levelno >= logging.WARNING or not is_library


def _tell_left_out(formatter: logging.Formatter, lines: int) -> str:
    """The line of the log that stands for lines that nobody has read in time."""
    message = f"{lines} lines were left out here: nobody read them in time"
    said = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": message}
    return formatter.format(logging.makeLogRecord(said))


def quiet_grpc(form: LogFormat) -> None:
    """Keep gRPC's C core from writing lines to stderr: all lines if ``form`` is json, otherwise all except errors.

    Call this before gRPC is imported. The variable ``GRPC_VERBOSITY`` overrules it. A child may use the rule for text
    even if its parent logs JSON: the parent passes a child's lines through ``relog``.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE" if form == "json" else "ERROR")


class RateFilter(logging.Filter):
    """Passes ``rate`` records a second, of which ``at_once`` may come at once, and drops the others.

    The next record that passes says how many were dropped. Critical records always pass. This filter is for a process
    in which requests of strangers cause log records.
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


def log_fault(error: Exception) -> None:
    """Log the traceback of an exception in the code of a user's part, where a process ends with its ``FaultError``."""
    if isinstance(error, FaultError):
        log.error("the code of one of your parts raised an exception", exc_info=error.__cause__)


def relog(child: str, line: str) -> None:
    """Log a line of a child's stderr: a JSON record of its log as a record of ours, any other line as information.

    A record keeps its own time: this process may have been stopped or busy since then.
    """
    try:
        entry = json.loads(line)
        level, name = logging.getLevelNamesMapping()[entry["level"]], f"{child}.{entry['logger']}"
        identity = {key: entry[key] for key in _KEYS} if entry.keys() >= {*_KEYS} else {}
        exception = entry.get("exception")  # A library's record may have any value here; ``logging`` needs a text.
        given = {"msg": str(entry["message"]), "exc_text": exception and str(exception), "identity": identity}
        if "time" in entry:
            given["created"] = datetime.fromisoformat(entry["time"]).timestamp()
    except (ValueError, LookupError, TypeError, RecursionError):  # It is a library's line, no record of ours.
        logging.getLogger(child).log(_foreign_level(line), "%s", line)
        return
    record = logging.makeLogRecord({"name": name, "levelno": level, "levelname": entry["level"], **given})
    if logging.getLogger(name).isEnabledFor(level):
        logging.getLogger(name).handle(record)


def _foreign_level(line: str) -> int:
    """The level of a line that is no record of ours. Lines of gRPC's C core begin with a level: E1122 03:17:05.…."""
    found = re.match(r"([IWEF])\d{4} \d\d:\d\d:", line)
    return _GRPC_LEVELS[found[1]] if found else logging.INFO


def escape(text: str) -> str:
    """A text of the other side for a terminal or a log, on one line.

    Colours are left out, since they are harmless and common. Each other control character, which a terminal might obey,
    becomes an escape as in Python's source.
    """
    plain = _COLOUR.sub("", text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)


def escape_lines(text: str) -> list[str]:
    """The lines of a text of the other side, each for a terminal or a log."""
    return [escape(line) for line in text.expandtabs().splitlines()]


def quote(text: str) -> str:
    """A stranger's text for our log. Each line is marked so that none looks like ours; control codes are escaped."""
    return "\n".join(f"| {line}" for line in escape_lines(text))


class LogThrottle:
    """Lets one kind of message be logged at most once in ``seconds``, and counts those that were left out."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._next, self._missed = -math.inf, 0

    def due(self) -> int | None:
        """The number of messages left out since the last one that was due; None if this message is left out too."""
        now = self._clock()
        if now < self._next:
            self._missed += 1
            return None
        missed, self._missed, self._next = self._missed, 0, now + self._seconds
        return missed
