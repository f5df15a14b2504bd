"""The body of the learner loop: border's order of events, the same for all three ways to train.

    opt → evaluate, best → record → flush → callbacks → save → finish → sync

An ``opt`` that returns None (warm-up) counts as no step. The first model is published before the first step is drawn.
A score that comes later than its opt step (see ``Scoring``) is recorded between two steps, under its own opt step.
"""

from __future__ import annotations

import enum
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Protocol

from common.config.trainer_config import TrainerConfig
from common.errors import CheckpointError, CrossborderError, RankLostError
from common.process.clocks import is_due
from common.process.signals import put_signals_back
from learner.evaluation.scoring import FinishedEvaluation, Scoring
from learner.loop.life import Life
from learner.loop.opt_step import OptStep, do_nothing
from learner.loop.run_records import RunRecords
from learner.shared.durable import WITHOUT_CHECKPOINT, logging_write_errors
from learner.storage.checkpoint import Checkpoints
from learner.storage.checkpointer import Checkpointer
from learner.storage.training_state import Moment

log = logging.getLogger(__name__)


class Outcome(enum.Enum):
    """Why training ended."""

    TARGET = "the target score was reached"
    CALLBACK = "a callback ended it"
    MAX_OPTS = "all opt steps were taken"
    MAX_SECONDS = "the time was over"
    MAX_ENV_STEPS = "all environment steps were taken"
    STOPPED = "it was asked to stop"

    @property
    def is_finish(self) -> bool:
        """Whether the run reached an end that its configuration sets; a run that was stopped may go on."""
        return self is not Outcome.STOPPED


@dataclass
class EvaluationCounts:
    """The number of evaluations so far, the seconds they took, and when the last one ended, in Unix seconds."""

    count: int = 0
    seconds: float = 0.0
    last_at: float | None = None

    def add(self, seconds: float) -> None:
        """Count one more evaluation, which took ``seconds`` and ends now."""
        self.count += 1
        self.seconds += seconds
        self.last_at = time.time()


class Publish(Protocol):
    """Makes the agent's present policy the newest model that actors can fetch."""

    def __call__(self, opt_steps: int, /, *, wait: bool = False) -> None:
        """Publish the policy of this opt step.

        It becomes the newest model a little later, while training goes on; with ``wait`` this returns only afterwards.
        """


def publish_to_nobody(opt_steps: int, /, *, wait: bool = False) -> None:
    """A ``Publish`` for training without actors: it publishes nothing."""


class Learner:
    """Takes opt steps and counts them. After each, it evaluates, records, saves and publishes if these are due.

    Args:
        opt: takes an opt step.
        config: says what is due when, and what ends training.
        scoring: scores the agent.
        records: take the losses and the scores.
        checkpoints: keep the policies; None: another rank keeps them.
        checkpointer: takes checkpoints of the whole training.
        publish: makes the agent's present policy the newest model.
        life: says how this life of the run began, and how it ends.
    """

    def __init__(
        self,
        opt: OptStep,
        config: TrainerConfig,
        *,
        scoring: Scoring,
        records: RunRecords,
        checkpoints: Checkpoints | None,
        checkpointer: Checkpointer,
        publish: Publish = publish_to_nobody,
        life: Life,
    ) -> None:
        self.opt, self.agent, self.buffer = opt, opt.agent, opt.buffer
        self.scoring, self.records = scoring, records
        self.publish = publish
        self.opt_steps = life.began.opt_steps
        self.evaluations = EvaluationCounts()
        self.best_score = life.best_score
        self._has_best = math.isfinite(life.best_score)
        self.outcome: Outcome | None = None
        self.life = life
        self._window, self._config = records.window, config
        self._checkpoints, self._checkpointer = checkpoints, checkpointer
        self._is_scored = True  # Without an opt step in this life of the run, nothing is scored at its end.
        if self._reaches_target(life.best_score):
            self.outcome = Outcome.TARGET  # The run reached its target in an earlier life.

    @property
    def inserted(self) -> int:
        """Steps stored so far, by all ranks."""
        return self.buffer.inserted + self.life.elsewhere()

    def start(self) -> None:
        """Publish the first model and start the clocks, before actors take their first step."""
        self.agent.train()
        self.publish(self.opt_steps, wait=True)
        self.life.start(self._window.start())
        self._check_budget()

    @contextmanager
    def training(self, announce_stop: Callable[[], None] = do_nothing) -> Iterator[None]:
        """The context of the loop that trains. It calls ``finish`` when the loop ends, unless another rank is lost.

        Args:
            announce_stop: tells the actors that training is over; not called if another life of the run follows.

        Raises:
            CrossborderError: a part of the system has failed (``fail``); see also ``finish``. An exception of the loop
                itself has precedence.
        """
        try:
            yield
            if self.life.failure is not None:
                raise self.life.failure
        except RankLostError as cause:  # It may have been lost in the middle of an opt step, so nothing is saved.
            self.life.break_off(cause)
            self.request_stop()
            raise
        except BaseException as cause:
            self.life.break_off(cause)
            self.request_stop()
            try:
                self.finish(do_nothing if self.life.is_followed else announce_stop)
            except CrossborderError as error:
                log.error("%s", error)
            except Exception:  # After an error of a GPU, no call of the agent may work any more.
                log.exception("the run could not be ended in order, and final/ or its last checkpoint may be missing")
            raise
        self.finish(announce_stop)

    def seconds(self) -> float:
        """Seconds from ``start`` until now, or until ``finish`` began, and those of the run's earlier lives."""
        return self.life.seconds()

    def fail(self, error: CrossborderError) -> None:
        """End training because a part of the system cannot go on; from any thread."""
        log.error("%s", error)
        if self.outcome is None:
            self.life.failure = error
            self.request_stop()

    def request_stop(self) -> None:
        """End training after the present opt step, and a running evaluation without a score; from any thread."""
        self.outcome = self.outcome or Outcome.STOPPED
        self.scoring.abandon()

    def step(self) -> bool:
        """Take one opt step and do all that is due after it; return False in warm-up, or if nothing can be drawn yet.

        Raises:
            DivergedError: a value to be recorded is not finite.
            Exception: from the agent's ``opt``, with a note that names the rows it had drawn.
        """
        losses = self.opt.take(self.opt_steps + 1)
        if losses is None:
            return False
        self.opt_steps += 1
        self._is_scored = False
        self._window.add(losses)
        moment, config = self._moment(), self._config
        record = self._evaluate(moment) if is_due(self.opt_steps, config.eval_interval) else {}
        if is_due(self.opt_steps, config.record_interval):
            record |= self.records.rates()
        if record:
            self.records.write(moment, record | self._window.means())
        self._check_callbacks()
        if is_due(self.opt_steps, config.save_interval):
            with logging_write_errors(WITHOUT_CHECKPOINT):
                self._save_as(str(self.opt_steps))
        self._check_budget()
        if self.outcome is None and is_due(self.opt_steps, config.sync_interval):
            self.publish(self.opt_steps)
        return True

    def tick(self) -> None:
        """Between two opt steps: credit a score that has come, take a due checkpoint, end training if its time is over.

        Raises:
            CrossborderError: the evaluator failed, or its score is not finite.
        """
        put_signals_back(time.monotonic())
        self._collect(wait=False)
        self._check_callbacks()
        self._checkpointer.tick(self._moment())
        self._check_budget()

    def _check_callbacks(self) -> None:
        """End training if a callback asks for it."""
        if self.records.callbacks.ended_because is not None:
            self.outcome = self.outcome or Outcome.CALLBACK

    def _check_budget(self) -> None:
        """End training if its steps are taken or its time is over."""
        if self.opt_steps >= self._config.max_opts:
            self.outcome = self.outcome or Outcome.MAX_OPTS
        if self._config.max_seconds is not None and self.seconds() >= self._config.max_seconds:
            self.outcome = self.outcome or Outcome.MAX_SECONDS
        if self._config.max_env_steps is not None and self.inserted >= self._config.max_env_steps:
            self.outcome = self.outcome or Outcome.MAX_ENV_STEPS

    def finish(self, announce_stop: Callable[[], None]) -> None:
        """End training: announce it, publish a last model, flush, save ``final/``, score, take a last checkpoint.

        A policy that has diverged is neither published nor saved. Training that was asked to stop scores nothing more.
        If actors score, they score the last policy before they are told to stop. The last checkpoint is taken even if
        there is no score or no ``final/``.

        Raises:
            DivergedError: a loss since the last record is not finite.
            CheckpointError: ``final/`` or the last checkpoint could not be saved.
            CrossborderError: the evaluator failed, or its last score is not finite.
        """
        self.life.end()
        try:
            self.records.require_finite(self.opt_steps)
            if self.scoring.needs_actors:
                self._score_last()
        finally:
            announce_stop()
            if not self.records.has_diverged:
                self._save_last()

    def _save_last(self) -> None:
        """Publish, flush and save for the last time; score the last policy, unless actors score it."""
        try:
            self.publish(self.opt_steps, wait=True)
        finally:  # Also if the agent's tensors cannot be published: its policy and its state can be saved.
            self.records.finish()
            self._keep_last()

    def _keep_last(self) -> None:
        """Save ``final/``, score it unless actors score, and take a last checkpoint."""
        try:
            self._save_as("final")
            if not self.scoring.needs_actors:
                self._score_last()
        finally:
            is_kept = self.records.has_diverged or self._checkpointer.finish(self._moment())
        if not is_kept:
            raise CheckpointError(
                f"opt step {self.opt_steps}: final/ is saved, but not the last checkpoint, as the log says; --resume "
                "goes on from the checkpoint before"
            )

    def _score_last(self) -> None:
        """Wait for the evaluation that still runs; score the last policy, unless it has been scored or has diverged."""
        if self.records.has_diverged:
            return
        self._collect(wait=True)
        if self._is_scored or self.outcome is Outcome.STOPPED or not self._config.eval_interval:
            return
        moment = self._moment()
        record = self._evaluate(moment)
        if record:
            self.records.write(moment, record)  # The window keeps its means for a longer run that resumes here.
        self._collect(wait=True)

    def _moment(self) -> Moment:
        return self.life.moment(self.opt_steps, self.buffer.inserted)

    def _evaluate(self, moment: Moment) -> dict[str, float]:
        started = self.life.clock()
        scored = self.scoring.begin(self.agent, moment)
        self._window.leave_out(self.life.clock() - started)
        return self._credit(scored) if scored else {}

    def _collect(self, *, wait: bool) -> None:
        scored = self.scoring.poll(wait=wait)
        if scored:
            self.records.write(scored.moment, self._credit(scored))

    def _credit(self, scored: FinishedEvaluation) -> dict[str, float]:
        """Keep the policy if its score is the best, see whether the score reaches the target; return its record."""
        score = scored.evaluation.score
        self.records.callbacks.on_evaluation(scored.moment.opt_steps, scored.evaluation)
        self.evaluations.add(scored.seconds)
        self._look_for_best()
        self._is_scored = scored.moment.opt_steps == self.opt_steps
        is_best = math.isfinite(score) and score > self.best_score
        if is_best:
            self.best_score = score
        log.info("opt step %d: evaluation %.2f (best so far %.2f)", scored.moment.opt_steps, score, self.best_score)
        if is_best:
            with logging_write_errors(WITHOUT_CHECKPOINT):
                self.scoring.keep_best(self.agent, scored)
                self._has_best = True
        if self._reaches_target(score) and self.outcome is not Outcome.STOPPED:
            self.outcome = Outcome.TARGET  # TARGET also replaces MAX_OPTS: the last score may come after it.
        record = {key: float(value) for key, value in scored.evaluation.record.items()}
        # The records end a run that has diverged; an evaluator of a user's own need not record its score.
        return record if math.isfinite(score) else {**record, "eval_score": score}

    def _look_for_best(self) -> None:
        """Begin the best score anew if a person has taken ``best/`` away, since its score was wrong."""
        if self._has_best and self._checkpoints is not None and not self._checkpoints.has("best"):
            log.warning("best/ was set aside: its score %g counts no more", self.best_score)
            self.best_score, self._has_best = -math.inf, False

    def _reaches_target(self, score: float) -> bool:
        return self._config.target_score is not None and score >= self._config.target_score

    def _save_as(self, name: str) -> None:
        if self._checkpoints is not None:
            self._checkpoints.save(name, self.agent, **asdict(self._moment()))
