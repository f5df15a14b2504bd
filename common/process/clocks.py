"""Deadlines, intervals, rates and delays, so that loops need no arithmetic on times."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType


class Deadline:
    """A point in monotonic time that several waits share."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + seconds

    def remaining(self) -> float:
        return max(0.0, self._at - self._clock())

    def passed(self) -> bool:
        return self._clock() >= self._at


class BrokenOffError(TimeoutError):
    """What hung was broken off."""


class _Alarm(BaseException):
    """No ``Exception``: a library would take that for an error of its own, and try again."""


@contextmanager
def breaking_off(seconds: float) -> Iterator[Callable[[], None]]:
    """Break off what hangs in this context: calls of a library that have no deadline, such as those of a driver.

    An alarm raises in the main thread, also while that waits for the system. It comes again and again, since the
    library may wait once more while it cleans up. In other threads this does nothing.

    Args:
        seconds: from the beginning of the context, or from the last call of what it gives.

    Raises:
        BrokenOffError: it has hung. Threads that the library has may go on with it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    is_over = False

    def begin() -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)

    def end(_number: int, _frame: FrameType | None) -> None:
        if not is_over:
            raise _Alarm

    handler, timer = signal.signal(signal.SIGALRM, end), signal.getitimer(signal.ITIMER_REAL)
    try:
        try:
            begin()
            yield begin
        finally:
            is_over = True  # An alarm before this line is caught below, and a later one does nothing.
    except _Alarm:
        raise BrokenOffError(f"expected an answer within {seconds:g} s, found none") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


class Stillness:
    """Measures how long a count has stood still that another process changes several times a second.

    If this process was stopped itself (by SIGSTOP, or with the whole host), the other process may have been stopped
    with it. A long time between two calls of ``seconds`` therefore does not count as stillness of the other process.
    """

    _AWAY_SECONDS = 5.0
    """A time between two calls that is longer than this does not count."""

    def __init__(self, count: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._count, self._clock = count, clock
        self.begin()

    def begin(self) -> None:
        """Measure from now on, as if the count had just changed."""
        self._seen, self._looked_at = self._count(), self._clock()
        self._since = self._looked_at

    def seconds(self) -> float:
        """The seconds since a call last found a change; to be called about once a second."""
        count, now = self._count(), self._clock()
        if count != self._seen or now - self._looked_at > self._AWAY_SECONDS:
            self._seen, self._since = count, now
        self._looked_at = now
        return now - self._since


def is_due(step: int, interval: int | None) -> bool:
    """Whether a step is one of every ``interval`` steps. With 0 or None no step is due."""
    return interval is not None and interval > 0 and step % interval == 0


class Bucket:
    """A token bucket, full at first: ``size`` tokens can be taken at once, ``rate`` a second in the long run."""

    def __init__(self, rate: float, size: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._size, self._clock = rate, size, clock
        self._left, self._at = size, clock()

    def is_empty(self) -> bool:
        now = self._clock()
        self._left, self._at = min(self._size, self._left + self._rate * (now - self._at)), now
        return self._left < 1

    def take(self) -> bool:
        """Take a token; False if there is none."""
        taken = not self.is_empty()
        self._left -= taken
        return taken


class Buckets:
    """A bucket (see ``Bucket``) for each name, of ``most`` names: then the one that took longest ago is forgotten."""

    def __init__(self, rate: float, size: float, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._size, self._most, self._clock = rate, size, most, clock
        self._buckets = OrderedDict[str, Bucket]()

    def take(self, name: str) -> bool:
        """Take a token of a name's bucket; False if there is none."""
        if name not in self._buckets:
            if len(self._buckets) >= self._most:
                self._buckets.popitem(last=False)
            self._buckets[name] = Bucket(self._rate, self._size, self._clock)
        self._buckets.move_to_end(name)
        return self._buckets[name].take()


@dataclass
class Backoff:
    """Exponential backoff with full jitter (AWS Architecture Blog, 'Exponential Backoff And Jitter')."""

    first: float = 0.1
    highest: float = 5.0
    rng: random.Random = field(default_factory=random.Random)
    _tries: int = 0

    def next_delay(self) -> float:
        """Seconds to wait before the next try."""
        ceiling = min(self.highest, self.first * 2.0 ** min(self._tries, 32))
        self._tries += 1
        return self.rng.uniform(0, ceiling)

    def reset(self) -> None:
        self._tries = 0
