"""The trainer's side of the evaluator process: it writes candidates, asks for scores and keeps the best candidate.

Trainer and child share one directory, ``.candidate``. The trainer writes the agent there and sends the child a line;
the child reads the directory, evaluates and answers with an event. The trainer writes no further candidate before the
answer has come, so the child never reads a directory that is being written. The agent goes on learning during the
evaluation: if the score is the best so far, the trainer renames the scored directory to ``best/`` instead of saving.
"""

from __future__ import annotations

import contextlib
import logging
import queue
from pathlib import Path

from common.config.run_config import RunConfig
from common.errors import CrossborderError, by_exit_code
from common.interfaces import Evaluation
from common.process.child import Child, Event
from common.process.clocks import Deadline, Stillness
from common.process.supervisor import Supervisor
from learner.evaluation.scoring import CANDIDATE, CandidateScoring, FinishedEvaluation
from learner.shared.bell import Bell
from learner.storage.checkpoint import Checkpoints
from learner.storage.training_state import Moment

log = logging.getLogger(__name__)
READY_SECONDS = 120.0
"""Seconds for the child to build environment, agent and evaluator."""
CHILD = "learner.evaluation.evaluator_child"
END_SECONDS = 3.0
MAX_ASKS = 2
"""Processes that are asked for the score of one candidate: if an environment hangs, each of them may end."""
LISTEN_SECONDS = 0.1
"""One wait for an answer. Between two waits the trainer looks whether the child was restarted or is to be abandoned."""


class EvaluatorProcess(CandidateScoring):
    """A ``Scoring`` in a child process.

    Three threads meet here. The trainer's thread calls every method but ``abandon``, which a signal's thread may call.
    The supervisor's thread restarts the child when it dies or hangs: it replaces ``supervisor.child``, and the
    trainer's thread sees another child than the child that it asked, and asks again. If the child cannot be restarted,
    the supervisor's thread leaves the reason in ``_failure``, and the trainer's thread raises it at the next ``poll``.

    Args:
        config: of the run; the child builds environment, agent and evaluator from it.
        checkpoints: takes the candidates and ``best/``.
        waits: return when the child has built its parts. Otherwise training begins while the child builds them, and
            ``poll`` raises its error if it fails: this is for a resumed run, whose evaluator was built in an earlier
            life already.

    Raises:
        CrossborderError: the child could not build its parts or did not start.
    """

    still_runs = logging.INFO, "the evaluation before still runs"

    def __init__(self, config: RunConfig, checkpoints: Checkpoints, *, waits: bool = True) -> None:
        super().__init__(checkpoints)
        self._boot = {
            "config": config.model_dump(mode="json"),
            "candidate": str(checkpoints.directory / CANDIDATE),
        }
        self._waits, self._directory = waits, Path.cwd()
        self._bell = Bell.create()
        self._beats, self._hung_seconds = 0, _hung_seconds(config)
        self._beats_before = 0
        """The signs of life before those of the present child; -1 if the trainer has waited for its start."""
        self._stillness = Stillness(self._count_beats)
        self._asked: Child | None = None
        """The child that was asked last for this score."""
        self._asks = 0
        self._failure: CrossborderError | None = None
        try:
            self._supervisor = Supervisor(self._start, self._fail, finished=frozenset(), is_hung=self._is_hung)
        except BaseException:
            self._bell.close()
            raise

    def _start(self) -> Child:
        fd = self._bell.write_fd
        boot = {**self._boot, "bell_fd": fd}
        child = Child("evaluator", CHILD, boot, pass_fds=(fd,), directory=self._directory)
        if self._waits:
            try:
                child.next_event(READY_SECONDS)
            except CrossborderError:
                child.end(1.0)
                raise
        self._stillness.begin()
        self._beats_before = -1 if self._waits else self._beats
        self._waits = True  # The next child starts in the supervisor's thread, and training does not wait for it.
        return child

    def _count_beats(self) -> int:
        """The signs of life so far, those since the last call included."""
        self._beats += self._bell.wait(0.0)
        return self._beats

    def _is_hung(self) -> bool:
        """Whether the whole process stands still. An evaluation may take any time: another thread rings the bell.

        A child that has not rung the bell yet may still be importing torch.
        """
        if self._hung_seconds is None:
            return False
        seconds, is_starting = self._stillness.seconds(), self._beats <= self._beats_before
        return seconds > (max(self._hung_seconds, READY_SECONDS) if is_starting else self._hung_seconds)

    def _fail(self, error: CrossborderError) -> None:
        self._failure = error

    @property
    def restarts(self) -> int:
        return self._supervisor.restarts

    def _hand_over(self, moment: Moment) -> None:
        self._asked, self._asks = None, 0
        self._ask(moment)

    def _ask(self, moment: Moment) -> Child | None:
        """Ask the present child for the score unless it was asked before; None if ``MAX_ASKS`` children ended at it."""
        child = self._supervisor.child
        if child is self._asked:
            return child
        if self._asks == MAX_ASKS:
            log.error("opt step %d: no evaluation: %d processes ended at it", moment.opt_steps, self._asks)
            self._running = None
            return None
        child.tell({"evaluate": CANDIDATE})
        self._asked, self._asks = child, self._asks + 1
        return child

    def _listen(self, deadline: Deadline) -> FinishedEvaluation | None:
        """Wait for the answer until the deadline.

        The events of a child that died are never read: each round takes the present child, and asks it first.
        """
        while not self._abandoned.is_set():
            if self._failure is not None:
                raise self._failure
            child = self._ask(self._running) if self._running is not None else None
            if self._running is None or child is None:
                return None
            with contextlib.suppress(queue.Empty):
                answer = child.events.get(timeout=min(LISTEN_SECONDS, deadline.remaining()))
                if "ready" not in answer:  # A child whose start nobody waited for says that it has built its parts.
                    return self._finish(answer, self._running)
            if deadline.passed():
                return None
        return None

    def _finish(self, answer: Event, moment: Moment) -> FinishedEvaluation:
        self._running = None
        if "failure" in answer:
            raise by_exit_code(answer["exit_code"], f"evaluator: {answer['failure']}")
        assert answer["opt_steps"] == moment.opt_steps, "there is one candidate at a time"
        return FinishedEvaluation(moment, Evaluation(answer["score"], answer["record"]), answer["seconds"])

    def end(self) -> None:
        """End the child, also in the middle of an evaluation, and remove the candidate."""
        self._supervisor.stop_watching()
        self._supervisor.child.end(END_SECONDS)
        self._bell.close()
        super().end()


def _hung_seconds(config: RunConfig) -> float | None:
    """Seconds without a sign of life after which the child is killed; None never kills it.

    An environment that holds Python's interpreter lock stops every thread of the child. It may do so for up to
    ``env.timeout_seconds``, after which the child's own watchdog ends the child.
    """
    hung, timeout = config.server.hung_seconds, config.env.timeout_seconds
    return None if hung is None or timeout is None else max(hung, 2 * timeout)
