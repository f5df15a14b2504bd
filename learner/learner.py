"""The learner loop's body: border's order of events, the same for training in turns and asynchronously.

    opt → evaluate, best → record → flush → save → finish → sync

``opt`` that returns None (warm-up) counts nothing. The first model is published before the first sample is taken.
"""

from __future__ import annotations

import enum
import logging
import math
import time
from collections.abc import Callable, Sequence

from common.clocks import Every
from common.config import TrainerConfig
from common.errors import CheckpointError
from common.interfaces import Agent, Evaluator, Recorder, ReplayBuffer
from learner.checkpoint import Checkpoints
from learner.window import RecordWindow

log = logging.getLogger(__name__)


class Outcome(enum.Enum):
    """Why training ended."""

    TARGET = "the target score was reached"
    MAX_OPTS = "all opt steps were taken"
    MAX_SECONDS = "the time was over"
    STOPPED = "it was asked to stop"


class Learner:
    """Counts steps and does what is due after each.

    Args:
        agent: learns.
        buffer: it learns from.
        evaluator: scores it.
        recorders: take records.
        checkpoints: takes saves.
        publish: makes the agent's present policy the newest model of this opt step.
        config: intervals and limits.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        agent: Agent,
        buffer: ReplayBuffer,
        evaluator: Evaluator,
        recorders: Sequence[Recorder],
        checkpoints: Checkpoints,
        publish: Callable[[int], None],
        config: TrainerConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agent = agent
        self.buffer = buffer
        self.opt_steps = 0
        self.best_score = -math.inf
        self.last_record: dict[str, float] = {}
        self.outcome: Outcome | None = None
        self._evaluator, self._recorders, self._checkpoints, self._publish = evaluator, recorders, checkpoints, publish
        self._config = config
        self._clock = clock
        self._eval, self._record = Every(config.eval_interval), Every(config.record_interval)
        self._save, self._sync = Every(config.save_interval), Every(config.sync_interval)
        self._window = RecordWindow()
        self._started = self._window_started = clock()
        self._window_opts, self._window_samples, self._window_eval_seconds = 0, 0, 0.0

    def start(self) -> None:
        """Publish the first model and start the clocks; nothing is sampled before."""
        self.agent.train()
        self._publish(self.opt_steps)
        self._started = self._window_started = self._clock()
        self._window_samples = self.buffer.inserted  # What was there before did not arrive in this window.

    def seconds(self) -> float:
        """Since ``start``."""
        return self._clock() - self._started

    def request_stop(self) -> None:
        """End training after the present step; safe to call from a signal handler or another thread."""
        self.outcome = self.outcome or Outcome.STOPPED

    def step(self) -> bool:
        """One optimisation step and all that is due after it; False if the agent was not ready (warm-up)."""
        losses = self.agent.opt(self.buffer)
        if losses is None:
            return False
        self.opt_steps += 1
        self._window_opts += 1
        self._window.add(losses)
        record = self._evaluate() if self._eval.due(self.opt_steps) else {}
        if self._record.due(self.opt_steps):
            record |= self._rates()
        if record:
            self._write(record)
        if self._save.due(self.opt_steps):
            self._try_save(str(self.opt_steps))
        if self.opt_steps >= self._config.max_opts:
            self.outcome = self.outcome or Outcome.MAX_OPTS
        self.check_time()
        if self.outcome is None and self._sync.due(self.opt_steps):
            self._publish(self.opt_steps)
        return True

    def check_time(self) -> None:
        """End training if its time is over."""
        if self._config.max_seconds is not None and self.seconds() >= self._config.max_seconds:
            self.outcome = self.outcome or Outcome.MAX_SECONDS

    def finish(self, announce_stop: Callable[[], None]) -> None:
        """The end of training: announce it, publish a last model, save ``final/``, flush.

        Raises:
            CheckpointError: ``final/`` could not be saved.
        """
        announce_stop()
        self._publish(self.opt_steps)
        for recorder in self._recorders:
            recorder.flush()
        self._save_as("final")

    def _evaluate(self) -> dict[str, float]:
        started = self._clock()
        self.agent.eval()
        evaluation = self._evaluator.evaluate(self.agent)
        self.agent.train()
        self._window_eval_seconds += self._clock() - started
        score = evaluation.score
        log.info("opt step %d: evaluation %.2f (best so far %.2f)", self.opt_steps, score, self.best_score)
        if score > self.best_score:  # Strictly; NaN never is.
            self.best_score = score
            self._try_save("best", score=score)
        if self._config.target_score is not None and score >= self._config.target_score:
            self.outcome = self.outcome or Outcome.TARGET
        return {key: float(value) for key, value in evaluation.record.items()}

    def _rates(self) -> dict[str, float]:
        """Border's throughput keys over the window since the last record."""
        now, inserted = self._clock(), self.buffer.inserted
        seconds, samples = max(now - self._window_started, 1e-9), inserted - self._window_samples
        rates = {
            # Evaluation is not the loop's speed; samples go on arriving meanwhile.
            "opt_steps_per_sec": self._window_opts / max(seconds - self._window_eval_seconds, 1e-9),
            "samples_per_sec": samples / seconds,
            "samples_per_opt_steps": samples / self._window_opts,
        }
        self._window_started, self._window_samples = now, inserted
        self._window_opts, self._window_eval_seconds = 0, 0.0
        return rates

    def _write(self, record: dict[str, float]) -> None:
        record = {"seconds": self.seconds(), "samples_total": float(self.buffer.inserted), **record}
        record |= self._window.means()
        bad = [key for key, value in record.items() if not math.isfinite(value)]
        if bad:
            log.error("opt step %d: not finite: %s", self.opt_steps, ", ".join(bad))
        self.last_record = {**self.last_record, **record}
        for recorder in self._recorders:
            recorder.write(self.opt_steps, record)
            recorder.flush()

    def _try_save(self, name: str, **meta: float) -> None:
        try:
            self._save_as(name, **meta)
        except CheckpointError as error:
            log.error("training goes on without this checkpoint: %s", error)

    def _save_as(self, name: str, **meta: float) -> None:
        self._checkpoints.save(
            name,
            self.agent,
            opt_steps=self.opt_steps,
            samples_total=self.buffer.inserted,
            seconds=self.seconds(),
            **meta,
        )
