"""The pace of a robot: a step begins at each tick of a fixed rate."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from common.process.log import LogThrottle

log = logging.getLogger(__name__)
LATE_SECONDS: Final = 0.002
"""A step that begins later than this after its tick is late."""
LOGGED_EVERY: Final = 60.0


class Pace:
    """The ticks of a fixed rate. The first step of an episode begins at once; tick k follows k periods later.

    The ticks do not move when a step is late. A step whose tick has passed begins at once. A tick is missed if the tick
    after it has passed too; it is left out, so that steps never follow each other faster to make up for lost time.

    Waits use ``Event.wait``, which another thread can end: on a core that is free, it is as precise as clock_nanosleep
    (each 0.1 ms late in 99 of 100 waits).

    Args:
        rate_hz: ticks per second.
        stopped: ends a wait; another thread sets it.
        note: called at each tick with its lateness in seconds, and the number of ticks that were missed before it.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        rate_hz: float,
        stopped: threading.Event,
        note: Callable[[float, int], object] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._period, self._stopped, self._note, self._clock = 1 / rate_hz, stopped, note, clock
        self._began: float | None = None  # None: the next step begins an episode.
        self._tick = 0
        self._stepped_at = 0.0  # When the newest step began.
        self._late = self._missed = 0
        self._throttle = LogThrottle(LOGGED_EVERY, clock)

    def begin(self) -> None:
        """Begin an episode: its first step is the first tick."""
        self._began = None

    def remaining(self) -> float:
        """Seconds until the next tick, negative after it; infinite before the first step of an episode."""
        return float("inf") if self._began is None else self._next() - self._clock()

    def _next(self) -> float:
        assert self._began is not None
        return self._began + self._tick * self._period

    def wait(self) -> bool:
        """Wait until the next step may begin; False if it must not begin, because ``stopped`` was set."""
        now = self._clock()
        if self._began is None:
            self._began, self._tick, self._stepped_at = now, 0, now
        busy = now - self._stepped_at
        missed = max(0, int(-self.remaining() / self._period))
        self._tick += missed
        if (seconds := self.remaining()) > 0:
            self._stopped.wait(seconds)
        if self._stopped.is_set():
            return False
        lateness = max(0.0, -self.remaining())
        self._tick += 1
        self._note(lateness, missed)
        if lateness > LATE_SECONDS or missed:
            self._tell(lateness, missed, busy)
        self._stepped_at = self._clock()
        return True

    def _tell(self, lateness: float, missed: int, busy: float) -> None:
        self._late += lateness > LATE_SECONDS
        self._missed += missed
        if self._throttle.due() is not None:
            log.warning(
                "env.rate_hz: %d steps late and %d ticks missed so far. This step began %.1f ms after its tick. The "
                "step before it, its recording and the choice of this action took %.1f ms, and %.1f ms lie between two "
                "ticks; if there was time enough, another process took the core",
                *(self._late, self._missed, lateness * 1e3, busy * 1e3, self._period * 1e3),
            )
