"""Decides whether a process that has ended is started again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from common.errors import EnvHungError, LearnerUnreachableError


class RestartPolicy:
    """Allows at most ``times`` restarts within ``seconds``."""

    def __init__(self, times: int = 5, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._times, self._seconds, self._clock = times, seconds, clock
        self._recent: deque[float] = deque()

    def allows(self) -> bool:
        """Whether one more restart is allowed now; if it is, it is counted."""
        now = self._clock()
        while self._recent and now - self._recent[0] > self._seconds:
            self._recent.popleft()
        if len(self._recent) >= self._times:
            return False
        self._recent.append(now)
        return True


_EXIT_CODES_TO_RESTART: Final = (1, LearnerUnreachableError.exit_code, EnvHungError.exit_code)


def may_restart_help(code: int) -> bool:
    """Whether a process that ended with this exit code may end with another one if it is started again.

    A restart may help after a signal (a code below 0), after an unexpected exception, when the learner could not be
    reached and when an environment hangs. After any other error of ours, the next start would end in the same way.
    """
    return code <= 0 or code in _EXIT_CODES_TO_RESTART
