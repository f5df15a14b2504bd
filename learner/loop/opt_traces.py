"""The trainer's spans of a traced batch: the opt step that first drew one of its rows, and the model that followed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from common.data import Array, ModelVersion
from common.process.tracing import open_tracing
from learner.loop.learner import Learner
from learner.shared.followed_batch import FollowedBatch


class OptTraces:
    """Checks after each opt step whether it has drawn from the followed batch, and afterwards waits for the next model.

    Args:
        directory: of the run's shared files.
        learner: takes the opt steps.
        last_drawn: gives the absolute indices of the rows at which the draws of the last batch begin, ``[n]``; empty if
            they are not known.
        newest: gives the version of the newest model.
    """

    def __init__(
        self,
        directory: Path,
        learner: Learner,
        last_drawn: Callable[[], Array],
        newest: Callable[[], ModelVersion],
    ) -> None:
        self._learner, self._last_drawn, self._newest = learner, last_drawn, newest
        self._tracing = open_tracing("trainer")
        self._followed = FollowedBatch.open(directory, create=True) if self._tracing is not None else None
        self._opt_seconds = 0.0
        self._drawn = 0
        """Number of the newest batch from which an opt step has drawn."""
        self._drawn_by, self._drawn_at = 0, 0.0
        """The count of that opt step, and when it ended."""

    def note_opt(self) -> None:
        """Note that the learner has taken an opt step, and done all that was due after it."""
        followed = self._followed
        if self._tracing is None or followed is None:
            return
        now, learner = time.monotonic(), self._learner
        seconds, self._opt_seconds = learner.opt.seconds - self._opt_seconds, learner.opt.seconds
        number = followed.number
        if number == followed.learnt:
            return
        if self._drawn != number:
            drawn = self._last_drawn()
            if not np.any((drawn >= followed.first) & (drawn < followed.end)):
                return
            ended = now - (learner.opt.seconds_since() or 0.0)
            self._tracing.record("opt", followed.trace_parent, ended - seconds, ended, opt_steps=learner.opt_steps)
            self._drawn, self._drawn_by, self._drawn_at = number, learner.opt_steps, ended
        newest = self._newest().opt_steps
        if newest >= self._drawn_by:
            self._tracing.record("publish", followed.trace_parent, self._drawn_at, now, opt_steps=newest)
            followed.note_learnt(number, newest)
