"""The audit log: who joined, who was refused, whose token was revoked, and what admins did. One JSON object a line.

No caller can fill the disk: equal events within ten seconds become one line with a count, lines are limited in number
and length, and the oldest file is overwritten.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

from common.process.clocks import Bucket
from common.process.log import LogThrottle

log = logging.getLogger(__name__)
Fact: TypeAlias = str | int | float
INTERVAL_SECONDS: Final = 10.0
MAX_KINDS: Final = 1000
"""Different events that are counted at one time; further events are left out."""
MAX_TEXT: Final = 200
"""Characters of one value."""
LINES_PER_SECOND, LINES_AT_ONCE = 10.0, 1000
MAX_BYTES: Final = 4 << 20
"""Of one file."""
N_OLD_FILES: Final = 3
FAILURES_LOGGED_EVERY: Final = 60.0


class AuditLog:
    """Appends events to a file. When that file is full it becomes ``.1``, ``.1`` becomes ``.2``, and so on to ``.3``.

    Args:
        path: of the newest file.
        max_bytes: of one file.
        clock: seconds, monotonic.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._max_bytes, self._clock = path, max_bytes, clock
        self._lines = Bucket(LINES_PER_SECOND, LINES_AT_ONCE, clock)
        self._left_out = 0
        self._open = OrderedDict[tuple[tuple[str, Fact], ...], tuple[float, int]]()
        """By event: when its interval began, and how often the event came again since. The oldest interval first."""
        self._failures = LogThrottle(FAILURES_LOGGED_EVERY, clock)

    def note(self, event: str, outcome: str, **facts: Fact) -> None:
        """Write an event at once, or count it if an equal event was written within the interval."""
        entry: dict[str, Fact] = {"event": event, "outcome": outcome, **facts}
        key = tuple((name, value[:MAX_TEXT] if isinstance(value, str) else value) for name, value in entry.items())
        if key in self._open:
            began, repeats = self._open[key]
            self._open[key] = began, repeats + 1
        elif len(self._open) < MAX_KINDS:
            self._open[key] = self._clock(), 0
            self._write(dict(key))
        else:
            self._left_out += 1

    def tick(self) -> None:
        """Write the counts of intervals that are over; an event that keeps coming has one line for each interval."""
        now = self._clock()
        while self._open:
            key, (began, repeats) = next(iter(self._open.items()))
            if now < began + INTERVAL_SECONDS:
                return
            del self._open[key]
            if repeats:
                self._open[key] = now, 0
                self._write({**dict(key), "count": repeats})

    def _write(self, entry: dict[str, Fact]) -> None:
        if not self._lines.take():
            self._left_out += 1
            return
        if self._left_out:
            entry, self._left_out = {**entry, "events_left_out": self._left_out}, 0
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}) + "\n"
        try:
            self._append(line.encode())
        except OSError as error:
            missed = self._failures.due()
            if missed is not None:
                log.error("audit log %s: cannot be written: %s (%d more)", self._path, error.strerror, missed)

    def _append(self, line: bytes) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if 0 < os.fstat(fd).st_size > self._max_bytes - len(line):
                self._rotate()
                os.close(fd)
                fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(fd, line)
        finally:
            os.close(fd)

    def _rotate(self) -> None:
        files = [self._path, *(self._path.with_name(f"{self._path.name}.{i}") for i in range(1, N_OLD_FILES + 1))]
        for newer, older in reversed([*pairwise(files)]):
            if newer.exists():
                newer.replace(older)
