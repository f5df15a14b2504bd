"""Evaluations during training: the interface that the learner calls, and evaluations that training waits for.

Two other implementations score a copy of the agent while training goes on: ``ActorScoring`` by an actor, and
``evaluator_process.py`` by a child.
"""

from __future__ import annotations

import abc
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from actor.sampling.guard import Watchdog
from common.depth import parse_json
from common.errors import CheckpointError
from common.evaluation import score_agent
from common.interfaces import Agent, Evaluation, Evaluator
from common.lanes.lanes import Busy
from common.lanes.watched_envs import EvaluationAbandoned
from common.process.clocks import Deadline
from common.process.log import LogThrottle
from learner.shared.control import ControlBlock
from learner.storage.checkpoint import Checkpoints
from learner.storage.training_state import Moment

log = logging.getLogger(__name__)
CANDIDATE: Final = ".candidate"
"""The directory of the policy that is being scored, in the run's directory."""


@dataclass(frozen=True)
class FinishedEvaluation:
    """An evaluation of the agent as it was at a moment of training, and the seconds that the evaluation took.

    The moment may lie far back: a child process evaluates while the agent goes on learning.
    """

    moment: Moment
    evaluation: Evaluation
    seconds: float


class Scoring:
    """Evaluates the agent at moments that the learner chooses, one evaluation at a time.

    This base never evaluates, for runs without evaluations.
    """

    needs_actors: ClassVar[bool] = False
    """Whether scores come from actors, so that no score comes after the actors were told to stop."""
    skipped: int = 0
    """Evaluations that were due while an earlier one was still running."""

    @property
    def restarts(self) -> int:
        """How often the evaluator process was restarted."""
        return 0

    def begin(self, agent: Agent, moment: Moment) -> FinishedEvaluation | None:  # noqa: ARG002 - nothing is scored
        """Evaluate the agent as it is now.

        Returns:
            The evaluation if it has finished already. None if it runs on (``poll`` returns it later), was skipped
            because an earlier evaluation is still running, or was abandoned.

        Raises:
            Exception: the evaluator raised it.
        """
        return None

    def poll(self, *, wait: bool = False) -> FinishedEvaluation | None:  # noqa: ARG002 - nothing runs on
        """Return the evaluation that is running if it has finished by now; each evaluation is returned once.

        Args:
            wait: wait for it, up to twice as long as the longest one has taken, but at least ``FINISH_SECONDS``; then
                abandon it.

        Raises:
            CrossborderError: the evaluator failed.
        """
        return None

    def keep_best(self, agent: Agent, finished: FinishedEvaluation) -> None:
        """Save the policy of an evaluation that has just been returned as ``best/``.

        Args:
            agent: may have learnt further since the evaluation began.
            finished: the evaluation.

        Raises:
            CheckpointError: it cannot be saved.
        """

    def abandon(self) -> None:
        """End the running evaluation soon, and begin no evaluation from now on. Any thread may call this."""


class InlineScoring(Scoring):
    """A ``Scoring`` for which training waits, as in border.

    Args:
        evaluator: steps environments that a ``Watch`` watches.
        checkpoints: takes ``best/``.
        abandoned: the event of that watch.
        busy: the ``busy`` of that watch.
        timeout_seconds: a call into the environment that takes longer is logged as an error; None logs nothing.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        checkpoints: Checkpoints,
        abandoned: threading.Event,
        busy: Busy | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        self._evaluator, self._checkpoints, self._abandoned = evaluator, checkpoints, abandoned
        self._busy, self._timeout_seconds = busy or Busy(), timeout_seconds

    def begin(self, agent: Agent, moment: Moment) -> FinishedEvaluation | None:
        try:
            with self._watchdog():
                score, record, seconds = score_agent(self._evaluator, agent)
            return FinishedEvaluation(moment, Evaluation(score, {**record}), seconds)
        except EvaluationAbandoned:
            return None
        finally:
            agent.train()

    def _watchdog(self) -> AbstractContextManager[None]:
        """Logs that an environment hangs. It does not end the process, since the trainer has other work too."""
        if self._timeout_seconds is None:
            return nullcontext()
        return Watchdog(self._busy, self._timeout_seconds, self._log_hang, ends_process=False)

    def _log_hang(self, stack: str) -> None:
        log.error(
            "an environment of the evaluation has not returned for %g s (env.timeout_seconds), and training waits for "
            "it; with evaluator.process: child, training would not wait:\n%s",
            self._timeout_seconds,
            stack,
        )

    def keep_best(self, agent: Agent, finished: FinishedEvaluation) -> None:
        self._checkpoints.save("best", agent, **asdict(finished.moment), score=finished.evaluation.score)

    def abandon(self) -> None:
        self._abandoned.set()


FINISH_SECONDS: Final = 60.0
"""How long the end of training waits at least for a score that is still missing, since nobody wants to wait for an
evaluator that has hung. It waits longer if an evaluation of this run has taken more than half of this time."""


class CandidateScoring(Scoring, abc.ABC):
    """The base of a ``Scoring`` of a copy of the agent in another process, while the agent goes on learning.

    There is one copy at a time, the candidate: the run's directory ``.candidate``. If its score is the best so far, it
    is renamed to ``best/``, since the agent itself has learnt further by then.
    """

    still_runs: ClassVar[tuple[int, str]]
    """The log level of the first evaluation that is skipped, and the reason why it is skipped."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._longest = 0.0
        """The seconds of the longest evaluation so far."""
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
        finished = self._listen(Deadline(max(FINISH_SECONDS, 2 * self._longest) if wait else 0.0))
        if finished is not None:
            self._longest = max(self._longest, finished.seconds)
        if wait and self._running is not None:
            log.warning("opt step %d: the evaluation is abandoned: no score came", self._running.opt_steps)
            self.abandon()
            self._running = None
        return finished

    def keep_best(self, agent: Agent, finished: FinishedEvaluation) -> None:  # noqa: ARG002 - it has learnt further
        draft = self._checkpoints.directory / CANDIDATE
        self._checkpoints.keep(draft, "best", score=finished.evaluation.score)

    def abandon(self) -> None:
        self._abandoned.set()

    def end(self) -> None:
        """Remove the candidate."""
        self._checkpoints.discard(CANDIDATE)


CANDIDATES: Final = "candidates"
"""The file of the slots for candidates, in the run's shared directory."""
SCORE: Final = "score.json"
"""The newest score, as ingest writes it in the run's shared directory."""
LISTEN_SECONDS: Final = 0.05
UNREAD_LOGGED_EVERY: Final = 60.0


class ActorScoring(CandidateScoring):
    """A ``Scoring`` by an actor which evaluates: ``actor-worker --evaluate``.

    The trainer publishes the candidate's model in separate slots, where no newer model for acting replaces it. Ingest
    hands it to the evaluating actor, and notes the score that the actor reports.

    Args:
        shared: the run's shared directory.
        control: shared with ingest, which counts there the scores it has written.
        publish: makes the agent's present policy, of this opt step, the newest candidate that actors can fetch.
        incarnation: of the run; scores of earlier lives of the run do not count.
        checkpoints: takes the candidates and ``best/``.
    """

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
    ) -> None:
        super().__init__(checkpoints)
        self._score, self._control, self._publish = shared / SCORE, control, publish
        self._incarnation, self._seen = incarnation, control.scores
        self._unread_log = LogThrottle(UNREAD_LOGGED_EVERY)

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
        try:
            score: dict[str, Any] = parse_json(self._score.read_text())
            is_awaited = (score["incarnation"], score["opt_steps"]) == (self._incarnation, self._running.opt_steps)
            finished = FinishedEvaluation(self._running, Evaluation(score["score"], score["record"]), score["seconds"])
        except (OSError, ValueError, LookupError, TypeError) as error:  # Ingest keeps the score, and writes the next.
            if (missed := self._unread_log.due()) is not None:
                log.warning("%s cannot be read (%s; %d more); it is read again", self._score, error, missed)
            return None
        self._seen = written
        if not is_awaited:
            return None
        self._running = None
        return finished
