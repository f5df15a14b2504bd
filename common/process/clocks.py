"""Deadlines, rhythms and rates, so that loops need no arithmetic of their own."""

from __future__ import annotations

import time
from collections.abc import Callable


class Deadline:
    """A point in monotonic time that several waits share."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + seconds

    def remaining(self) -> float:
        return max(0.0, self._at - self._clock())

    def passed(self) -> bool:
        return self._clock() >= self._at


class Stillness:
    """Notices that a count which others keep changing has not changed for too long.

    While the process that looks was stopped itself, the others may have been stopped with it: such a time does not
    count.

    Args:
        count: as it stands; the others change it several times a second.
        clock: seconds, monotonic.
    """

    _AWAY_SECONDS = 5.0
    """Two looks further apart than this were not meant to be."""

    def __init__(self, count: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._count, self._clock = count, clock
        self.begin()

    def begin(self) -> None:
        """Count from now on, as if there had been a change."""
        self._seen, self._looked_at = self._count(), self._clock()
        self._since = self._looked_at

    def seconds(self) -> float:
        """How long there has been no change, as far as looks tell; to be asked about once a second."""
        count, now = self._count(), self._clock()
        if count != self._seen or now - self._looked_at > self._AWAY_SECONDS:
            self._seen, self._since = count, now
        self._looked_at = now
        return now - self._since


class Every:
    """Due at each ``interval``-th step; 0 or None is never due."""

    def __init__(self, interval: int | None) -> None:
        self._interval = interval or 0

    def due(self, step: int) -> bool:
        return self._interval > 0 and step % self._interval == 0

    def count(self, before: int, now: int) -> int:
        """How many of the steps after ``before``, up to and including ``now``, are due."""
        return now // self._interval - before // self._interval if self._interval else 0


class Bucket:
    """A token bucket, full at first: ``size`` may be taken at once, ``rate`` a second in the long run."""

    def __init__(self, rate: float, size: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._size, self._clock = rate, size, clock
        self._left, self._at = size, clock()

    def is_empty(self) -> bool:
        now = self._clock()
        self._left, self._at = min(self._size, self._left + self._rate * (now - self._at)), now
        return self._left < 1

    def take(self) -> bool:
        """Take one, if there is one."""
        taken = not self.is_empty()
        self._left -= taken
        return taken
