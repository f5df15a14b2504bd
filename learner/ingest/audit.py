"""The audit log: who joined, who was refused, whose token was revoked, and what admins did. One JSON object a line.

No caller can fill the disk: equal events within ten seconds become one line with a count, lines are limited in number
and length, and the oldest file is overwritten. Actors of one name have their own limit, and so have admins of one
name, and callers without a valid token. So even if the actors of one name make very many calls, the lines about
admins and other callers are written.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

from common.process.clocks import Bucket
from common.process.log import LogThrottle
from common.shared.mapped import wait_for_lock

log = logging.getLogger(__name__)
Fact: TypeAlias = str | int | float
STRANGER: Final = "unauthenticated"
"""The outcome of a call without a valid token."""
INTERVAL_SECONDS: Final = 10.0
MAX_KINDS: Final = 1000
"""The most different events that are counted at one time, for callers without a valid token and for each name; further
events are left out."""
MAX_NAMES: Final = 4096
"""The most names that are remembered; then the name that was written longest ago is forgotten."""
MAX_TEXT: Final = 200
"""The most characters of one value."""
LINES_PER_SECOND, LINES_AT_ONCE = 10.0, 1000
STRANGERS_LINES_PER_SECOND, STRANGERS_LINES_AT_ONCE = 0.1, 100
MAX_BYTES: Final = 4 << 20
"""The most bytes of one file."""
N_OLD_FILES: Final = 3
FAILURES_LOGGED_EVERY: Final = 60.0


class _Lines:
    """How many lines may be written, and the events that are being counted."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.left_out = 0
        self.counted = OrderedDict[tuple[tuple[str, Fact], ...], tuple[float, int]]()
        """By event: when its interval began, and how often the event came again since. The oldest interval first."""


class AuditLog:
    """Appends events to a file. When that file is full it becomes ``.1``, ``.1`` becomes ``.2``, and so on to ``.3``.

    Several processes may append to the same file.

    Args:
        path: of the newest file; None: events go to the process's log only.
        max_bytes: of one file.
        clock: seconds, monotonic.
    """

    def __init__(
        self, path: Path | None, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._max_bytes, self._clock = path, max_bytes, clock
        self._lines = OrderedDict[tuple[Fact, Fact], _Lines]()
        """By role and name of the caller, since tokens of actors and of admins may have the same name; or by event."""
        self._strangers = _Lines(Bucket(STRANGERS_LINES_PER_SECOND, STRANGERS_LINES_AT_ONCE, clock))
        self._failures = LogThrottle(FAILURES_LOGGED_EVERY, clock)

    def note(self, event: str, outcome: str, **facts: Fact) -> None:
        """Write an event at once, or count it if an equal event was written within the interval."""
        entry: dict[str, Fact] = {"event": event, "outcome": outcome, **facts}
        key = tuple((name, value[:MAX_TEXT] if isinstance(value, str) else value) for name, value in entry.items())
        lines = self._strangers if outcome == STRANGER else self._lines_of(event, facts)
        if key in lines.counted:
            began, repeats = lines.counted[key]
            lines.counted[key] = began, repeats + 1
        elif len(lines.counted) < MAX_KINDS:
            lines.counted[key] = self._clock(), 0
            self._write(dict(key), lines)
        else:
            lines.left_out += 1

    def _lines_of(self, event: str, facts: Mapping[str, Fact]) -> _Lines:
        """The limit that an event counts against: that of the caller; the learner's own events have others."""
        caller = (facts.get("role", ""), facts.get("name", "")) if "method" in facts else ("event", event)
        if caller not in self._lines:
            if len(self._lines) >= MAX_NAMES:
                self._lines.popitem(last=False)
            self._lines[caller] = _Lines(Bucket(LINES_PER_SECOND, LINES_AT_ONCE, self._clock))
        self._lines.move_to_end(caller)
        return self._lines[caller]

    def tick(self) -> None:
        """Write the counts of intervals that are over; an event that keeps coming has one line for each interval."""
        for lines in (*self._lines.values(), self._strangers):
            self._write_counts(lines)

    def _write_counts(self, lines: _Lines) -> None:
        now = self._clock()
        while lines.counted:
            key, (began, repeats) = next(iter(lines.counted.items()))
            if now < began + INTERVAL_SECONDS:
                return
            del lines.counted[key]
            if repeats:
                lines.counted[key] = now, 0
                self._write({**dict(key), "count": repeats}, lines)

    def _write(self, entry: dict[str, Fact], lines: _Lines) -> None:
        if not lines.bucket.take():
            lines.left_out += 1
            return
        if lines.left_out:
            entry, lines.left_out = {**entry, "events_left_out": lines.left_out}, 0
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}) + "\n"
        if self._path is None:
            log.info("audit: %s", line.rstrip())
            return
        try:
            self._append(self._path, line.encode())
        except OSError as error:
            missed = self._failures.due()
            if missed is not None:
                log.error("audit log %s: cannot be written: %s (%d more)", self._path, error.strerror, missed)

    def _append(self, path: Path, line: bytes) -> None:
        with suppress(FileNotFoundError):
            if self._is_full(path.stat(), line):
                self._rotate(path, line)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            written = os.write(fd, line)
            if written < len(line):  # The disk is full. The next line would be joined to the part that was written.
                os.ftruncate(fd, os.fstat(fd).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)

    def _is_full(self, file: os.stat_result, line: bytes) -> bool:
        """Whether a file has no room for a line."""
        return 0 < file.st_size > self._max_bytes - len(line)

    def _rotate(self, path: Path, line: bytes) -> None:
        """Give each file the next older name, unless another process does so now or has just done so.

        Otherwise two processes that find the same file full would rotate twice: the second would overwrite the oldest
        file for a new one with a line or two. The full file gets its name last, so as long as it is in its place, only
        the process that has locked it renames files.
        """
        with path.open("r+b") as full:
            if not wait_for_lock(full.fileno(), 0.0):
                return  # The line makes that file a little too large.
            found = path.stat()
            if not (os.path.samestat(found, os.fstat(full.fileno())) and self._is_full(found, line)):
                return
            files = [path, *(path.with_name(f"{path.name}.{i}") for i in range(1, N_OLD_FILES + 1))]
            for newer, older in reversed([*pairwise(files)]):
                if newer.exists():
                    newer.replace(older)
