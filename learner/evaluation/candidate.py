"""The base class of the ways to score a copy of the agent in another process while the agent goes on learning.

The copy is a directory of the run, ``.candidate``. If its score is the best so far, it is renamed to ``best/``, since
the agent itself has learnt further by then.
"""

from __future__ import annotations

import abc
import logging
import threading
from dataclasses import asdict
from typing import ClassVar

from common.errors import CheckpointError
from common.interfaces import Agent
from common.process.clocks import Deadline
from learner.evaluation.scoring import CANDIDATE, FinishedEvaluation
from learner.storage.checkpoint import Checkpoints
from learner.storage.moment import Moment

log = logging.getLogger(__name__)


class CandidateScoring(abc.ABC):
    """The part of a ``Scoring`` that handles candidates. There is one candidate at a time.

    Args:
        checkpoints: takes the candidates and ``best/``.
        finish_seconds: at the end of training, the longest wait for the score that is still missing.
    """

    still_runs: ClassVar[tuple[int, str]]
    """The log level of the first evaluation that is skipped, and the reason why it is skipped."""

    def __init__(self, checkpoints: Checkpoints, finish_seconds: float) -> None:
        self.skipped = 0
        self._checkpoints, self._finish_seconds = checkpoints, finish_seconds
        self._running: Moment | None = None
        """The moment of the candidate whose score is awaited; None if no score is awaited."""
        self._abandoned = threading.Event()

    @abc.abstractmethod
    def _hand_over(self, moment: Moment) -> None:
        """Have the candidate of this moment scored."""

    @abc.abstractmethod
    def _listen(self, deadline: Deadline) -> FinishedEvaluation | None:
        """Wait for the score until the deadline; clear ``_running`` if the score has come or will never come."""

    def begin(self, agent: Agent, moment: Moment) -> FinishedEvaluation | None:
        """See ``Scoring``."""
        if self._abandoned.is_set():
            return None
        if self._running is not None:
            self._skip(moment)
            return None
        try:
            self._checkpoints.draft(CANDIDATE, agent, **asdict(moment))
        except CheckpointError as error:
            log.error("training goes on without this evaluation: %s", error)
            return None
        self._running = moment
        self._hand_over(moment)
        return None

    def _skip(self, moment: Moment) -> None:
        level, why = self.still_runs
        # Most readers need to hear this only once.
        log.log(logging.DEBUG if self.skipped else level, "opt step %d: evaluation skipped, %s", moment.opt_steps, why)
        self.skipped += 1

    def poll(self, *, wait: bool = False) -> FinishedEvaluation | None:
        """See ``Scoring``."""
        finished = self._listen(Deadline(self._finish_seconds if wait else 0.0))
        if wait and self._running is not None:
            log.warning("opt step %d: the evaluation is abandoned: no score came", self._running.opt_steps)
            self.abandon()
            self._running = None
        return finished

    def keep_best(self, agent: Agent, finished: FinishedEvaluation) -> None:  # noqa: ARG002 - it has learnt further
        """See ``Scoring``."""
        draft = self._checkpoints.directory / CANDIDATE
        self._checkpoints.keep(draft, "best", score=finished.evaluation.score)

    def abandon(self) -> None:
        """See ``Scoring``."""
        self._abandoned.set()

    def end(self) -> None:
        """Remove the candidate."""
        self._checkpoints.discard(CANDIDATE)
