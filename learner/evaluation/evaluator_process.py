"""The trainer's handle on its evaluator process: hands over candidates, takes scores, keeps exactly what was scored."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from dataclasses import asdict

from common.config.run_config import RunConfig
from common.errors import CheckpointError, CrossborderError, by_exit_code
from common.interfaces import Agent, Evaluation
from common.process.child import Child, Event, Supervisor
from common.process.clocks import Deadline, Stillness
from learner.evaluation.scoring import Scored
from learner.shared.bell import Bell
from learner.storage.checkpoint import Checkpoints
from learner.storage.moment import Moment

log = logging.getLogger(__name__)
CANDIDATE = ".candidate"
READY_SECONDS = 120.0
END_SECONDS = 3.0
MAX_ASKS = 2
"""For one candidate; an environment that hangs at it once may do so each time."""
LISTEN_SECONDS = 0.1
"""One wait for the child; its restart and an abandonment are seen after it at latest."""


class EvaluatorProcess:
    """A ``Scoring`` in a child process, on a candidate checkpoint that becomes ``best/`` if its score is the best.

    The child is restarted when it dies or hangs and then asked again, ``MAX_ASKS`` times in all; after that the
    candidate has no score. All methods but ``abandon`` belong to one thread.

    Args:
        config: the run's; the child builds environment, agent and evaluator from it.
        checkpoints: takes the candidates and ``best/``.

    Raises:
        CrossborderError: the child could not build its parts or did not come up.
    """

    def __init__(self, config: RunConfig, checkpoints: Checkpoints) -> None:
        self.skipped = 0
        self._checkpoints, self._finish_seconds = checkpoints, config.evaluator.finish_seconds
        self._boot = {
            "config": config.model_dump(mode="json"),
            "candidate": str(checkpoints.directory / CANDIDATE),
        }
        self._bell = Bell.create()
        self._beats, self._hung_seconds = 0, _hung_seconds(config)
        self._stillness = Stillness(self._heard_beats)
        self._running: Moment | None = None
        self._asked: Child | None = None
        self._asks = 0
        self._failure: CrossborderError | None = None
        self._abandoned = threading.Event()
        try:
            self._supervisor = Supervisor(self._start, self._fail, finished=frozenset(), is_hung=self._is_hung)
        except BaseException:
            self._bell.close()
            raise

    def _start(self) -> Child:
        fd = self._bell.write_fd
        child = Child("evaluator", "learner.evaluation.evaluator_child", {**self._boot, "bell_fd": fd}, pass_fds=(fd,))
        try:
            child.next_event(READY_SECONDS)
        except CrossborderError:
            child.end(1.0)
            raise
        self._stillness.begin()
        return child

    def _heard_beats(self) -> int:
        self._beats += self._bell.wait(0.0)
        return self._beats

    def _is_hung(self) -> bool:
        """Whether the child's process is stopped. What its main thread does may take as long as it likes."""
        return self._hung_seconds is not None and self._stillness.seconds() > self._hung_seconds

    def _fail(self, error: CrossborderError) -> None:
        self._failure = error

    @property
    def restarts(self) -> int:
        return self._supervisor.restarts

    def begin(self, agent: Agent, moment: Moment) -> Scored | None:
        if self._abandoned.is_set():
            return None
        if self._running is not None:
            level = logging.DEBUG if self.skipped else logging.INFO  # Once is enough to tell.
            log.log(level, "opt step %d: evaluation skipped, the one before still runs", moment.opt_steps)
            self.skipped += 1
            return None
        try:
            self._checkpoints.draft(CANDIDATE, agent, **asdict(moment))
        except CheckpointError as error:
            log.error("training goes on without this evaluation: %s", error)
            return None
        self._running, self._asked, self._asks = moment, None, 0
        self._ask(moment)
        return None

    def _ask(self, moment: Moment) -> Child | None:
        """Ask the present child, once; a restarted one is another. None when there have been enough."""
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

    def finished(self, *, wait: bool = False) -> Scored | None:
        scored = self._listen(Deadline(self._finish_seconds if wait else 0.0))
        if wait and self._running is not None:
            log.warning("opt step %d: the evaluation is abandoned", self._running.opt_steps)
            self.abandon()
            self._running = None
        return scored

    def _listen(self, deadline: Deadline) -> Scored | None:
        while not self._abandoned.is_set():
            if self._failure is not None:
                raise self._failure
            child = self._ask(self._running) if self._running is not None else None
            if self._running is None or child is None:
                return None
            with contextlib.suppress(queue.Empty):
                answer = child.events.get(timeout=min(LISTEN_SECONDS, deadline.remaining()))
                return self._scored(answer, self._running)
            if deadline.passed():
                return None
        return None

    def _scored(self, answer: Event, moment: Moment) -> Scored:
        self._running = None
        if "failure" in answer:
            raise by_exit_code(answer["exit_code"], f"evaluator: {answer['failure']}")
        assert answer["opt_steps"] == moment.opt_steps, "there is one candidate at a time"
        return Scored(moment, Evaluation(answer["score"], answer["record"]), answer["seconds"])

    def keep_best(self, agent: Agent, scored: Scored) -> None:  # noqa: ARG002 - it has gone on learning
        draft = self._checkpoints.directory / CANDIDATE
        self._checkpoints.keep(draft, "best", score=scored.evaluation.score)

    def abandon(self) -> None:
        self._abandoned.set()

    def end(self) -> None:
        """End the child, and what it still evaluates; no candidate is left behind."""
        self._supervisor.stop_watching()
        self._supervisor.child.end(END_SECONDS)
        self._bell.close()
        self._checkpoints.discard(CANDIDATE)


def _hung_seconds(config: RunConfig) -> float | None:
    """An environment may keep the whole process from running for a while, though not beyond its own timeout."""
    hung, timeout = config.server.hung_seconds, config.env.timeout_seconds
    return None if hung is None or timeout is None else max(hung, 2 * timeout)
