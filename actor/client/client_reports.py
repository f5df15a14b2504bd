"""What a client of an acting service reports of its environments; the service passes it on to its learner."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from actor.client.acting_session import ActingSession
from actor.stat import ActorCounters

REPORT_SECONDS: Final = 5.0
FIGURES: Final = ("env_seconds", "env_rebuilds", "env_hangs", "safe_stops")
"""The fields of ``ActorFigures`` that ``ClientReport`` has."""


class Reports:
    """Reports what has come up since the last report. A report that was on its way as the connection broke is lost.

    Args:
        session: with the service.
        counters: of this process.
        clock: seconds, monotonic.
    """

    def __init__(
        self, session: ActingSession, counters: ActorCounters, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._session, self._counters, self._clock = session, counters, clock
        self._told: dict[str, Any] = dict.fromkeys(FIGURES, 0)
        self._due_at = clock() + REPORT_SECONDS

    def send_if_due(self) -> None:
        """Report once in ``REPORT_SECONDS``."""
        if self._clock() >= self._due_at:
            self.send()

    def send(self, *, is_last: bool = False) -> None:
        """Report now; does not wait. What cannot be told now is in the next report.

        Args:
            is_last: whether the session is closed afterwards.
        """
        self._due_at = self._clock() + REPORT_SECONDS
        totals = {name: getattr(self._counters, name) for name in FIGURES}
        error = self._counters.take_env_error()
        new = {name: total - self._told[name] for name, total in totals.items()}
        if self._session.report({**new, "env_error": error}, is_last=is_last):
            self._told = totals
        elif error:
            self._counters.note_env_error(error)
