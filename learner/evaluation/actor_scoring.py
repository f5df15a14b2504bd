"""Scores that come from an actor which evaluates: ``actor-worker --evaluate``.

The trainer keeps a copy of the candidate and publishes its model in separate slots, where no newer model for acting
replaces it. Ingest hands the candidate to the evaluating actor, and notes the score that the actor reports. The agent
goes on learning during the evaluation: if the score is the best so far, the trainer renames the copy to ``best/``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from common.depth import parse_json
from common.interfaces import Evaluation
from common.process.clocks import Deadline
from learner.evaluation.scoring import CandidateScoring, FinishedEvaluation
from learner.shared.control import ControlBlock
from learner.storage.checkpoint import Checkpoints
from learner.storage.training_state import Moment

CANDIDATES: Final = "candidates"
"""The file of the slots for candidates, in the run's shared directory."""
SCORE: Final = "score.json"
"""The newest score, as ingest writes it in the run's shared directory."""
LISTEN_SECONDS: Final = 0.05


class ActorScoring(CandidateScoring):
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
    still_runs = logging.WARNING, "the evaluation before has no score yet; is an actor-worker --evaluate online?"

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
        super().__init__(checkpoints, finish_seconds)
        self._score, self._control, self._publish = shared / SCORE, control, publish
        self._incarnation, self._seen = incarnation, control.scores

    def _hand_over(self, moment: Moment) -> None:
        self._publish(moment.opt_steps)

    def _listen(self, deadline: Deadline) -> FinishedEvaluation | None:
        finished = self._collect()
        while finished is None and self._running is not None and not deadline.passed():
            if self._abandoned.wait(LISTEN_SECONDS):
                break
            self._control.trainer_beats += 1  # Ingest sees that the trainer lives while it waits for the last score.
            finished = self._collect()
        return finished

    def _collect(self) -> FinishedEvaluation | None:
        """The score that is awaited, if ingest has written it since the last call."""
        written = self._control.scores
        if written == self._seen or self._running is None:
            return None
        self._seen = written
        score: dict[str, Any] = parse_json(self._score.read_text())
        if (score["incarnation"], score["opt_steps"]) != (self._incarnation, self._running.opt_steps):
            return None
        moment, self._running = self._running, None
        return FinishedEvaluation(moment, Evaluation(score["score"], score["record"]), score["seconds"])
