"""One life of a run, from its start or its resume to its end: how it began, how long the run takes, and how it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from common.errors import CrossborderError, RankLostError, TakenOverError
from learner.storage.training_state import Moment


class Life:
    """How this life of a run began, and how it ends.

    Args:
        began: the moment at which this life begins.
        best_score: of the earlier lives of the run; minus infinity if there is none.
        elsewhere: gives the steps that other ranks have stored; None: there are no other ranks.
        is_restarted: whether this process is started again after an error.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        began: Moment,
        best_score: float = -math.inf,
        *,
        elsewhere: Callable[[], int] | None = None,
        is_restarted: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.began, self.best_score, self.clock = began, best_score, clock
        self.elsewhere = elsewhere or (lambda: 0)
        self.failure: CrossborderError | None = None
        """Why a part of the system cannot go on; None while all parts can."""
        self.is_followed = False
        """Whether another life of the run follows at once. Then actors are not told to stop: they wait for it."""
        self._is_restarted = is_restarted
        self._zero = clock() - began.seconds
        self._ended: float | None = None

    def start(self, now: float) -> None:
        """Count the seconds of this life from ``now``."""
        self._zero = now - self.began.seconds

    def seconds(self) -> float:
        """Seconds from ``start`` until now or until ``end``, and those of the run's earlier lives."""
        return (self.clock() if self._ended is None else self._ended) - self._zero

    def moment(self, opt_steps: int, inserted: int) -> Moment:
        """The present moment."""
        return Moment(opt_steps, inserted, self.seconds(), self.elsewhere())

    def break_off(self, error: BaseException) -> None:
        """Note the error that ends this life.

        After it, torchrun or the rank that was lost may begin another life; or another learner has begun it already.
        """
        is_lost = isinstance(error, RankLostError | TakenOverError)
        self.is_followed = is_lost or (self._is_restarted and isinstance(error, Exception))

    def end(self) -> None:
        """Count no more seconds."""
        self._ended = self.clock()
