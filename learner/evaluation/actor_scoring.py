"""Scores that come from an actor which evaluates: ``actor-worker --evaluate``.

The trainer keeps a copy of the candidate and publishes its model in slots of its own, where no newer model for acting
takes its place. Ingest hands it to the evaluating actor, and notes the score that the actor reports. The agent goes on
learning meanwhile: if the score is the best so far, the trainer renames the copy to ``best/``.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from common.errors import CheckpointError
from common.interfaces import Agent, Evaluation
from common.process.clocks import Deadline
from learner.evaluation.scoring import CANDIDATE, FinishedEvaluation
from learner.shared.control import ControlBlock
from learner.storage.checkpoint import Checkpoints
from learner.storage.moment import Moment

log = logging.getLogger(__name__)
CANDIDATES: Final = "candidates"
"""The file of the slots for candidates, in the run's shared directory."""
SCORE: Final = "score.json"
"""The newest score, as ingest writes it in the run's shared directory."""
LISTEN_SECONDS: Final = 0.05


class ActorScoring:
    """A ``Scoring`` by an actor.

    Args:
        shared: the run's shared directory.
        control: shared with ingest, which counts there the scores it has written.
        publish: makes the agent's present policy, of this opt step, the newest candidate that actors can fetch.
        incarnation: of the run; scores of earlier lives of the run do not count.
        checkpoints: takes the candidates and ``best/``.
        finish_seconds: at the end of training, the longest wait for the score that is still missing.
    """

    restarts = 0
    needs_actors = True

    def __init__(
        self,
        shared: Path,
        control: ControlBlock,
        publish: Callable[[int], None],
        *,
        incarnation: int,
        checkpoints: Checkpoints,
        finish_seconds: float,
    ) -> None:
        self.skipped = 0
        self._score, self._control, self._publish = shared / SCORE, control, publish
        self._incarnation, self._checkpoints, self._finish_seconds = incarnation, checkpoints, finish_seconds
        self._seen = control.scores
        self._running: Moment | None = None
        """The moment of the candidate whose score is awaited; None if no score is awaited."""
        self._abandoned = threading.Event()

    def begin(self, agent: Agent, moment: Moment) -> FinishedEvaluation | None:
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
        self._publish(moment.opt_steps)
        return None

    def _skip(self, moment: Moment) -> None:
        level = logging.DEBUG if self.skipped else logging.WARNING  # Most readers need to hear this only once.
        log.log(
            level,
            "opt step %d: evaluation skipped, the one before has no score yet; is an actor-worker --evaluate online?",
            moment.opt_steps,
        )
        self.skipped += 1

    def poll(self, *, wait: bool = False) -> FinishedEvaluation | None:
        deadline = Deadline(self._finish_seconds if wait else 0.0)
        finished = self._collect()
        while wait and finished is None and self._running is not None and not deadline.passed():
            if self._abandoned.wait(LISTEN_SECONDS):
                break
            finished = self._collect()
        if wait and self._running is not None:
            log.warning("opt step %d: the evaluation is abandoned: no score came", self._running.opt_steps)
            self.abandon()
            self._running = None
        return finished

    def _collect(self) -> FinishedEvaluation | None:
        """The score that is awaited, if ingest has written it since the last call."""
        written = self._control.scores
        if written == self._seen or self._running is None:
            return None
        self._seen = written
        score: dict[str, Any] = json.loads(self._score.read_text())
        if (score["incarnation"], score["opt_steps"]) != (self._incarnation, self._running.opt_steps):
            return None
        moment, self._running = self._running, None
        return FinishedEvaluation(moment, Evaluation(score["score"], score["record"]), score["seconds"])

    def keep_best(self, agent: Agent, finished: FinishedEvaluation) -> None:  # noqa: ARG002 - it has learnt further
        draft = self._checkpoints.directory / CANDIDATE
        self._checkpoints.keep(draft, "best", score=finished.evaluation.score)

    def abandon(self) -> None:
        self._abandoned.set()

    def end(self) -> None:
        """Remove the candidate."""
        self._checkpoints.discard(CANDIDATE)
