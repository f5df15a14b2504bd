"""Where the agent is scored; the learner only says when.

Here training waits for an evaluation; ``learner/evaluation/evaluator_process.py`` has a child do it meanwhile.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import gymnasium

from actor.guard import Busy, Watchdog
from common.envs import Env, EnvExitError
from common.interfaces import Agent, Evaluation, Evaluator
from learner.storage.checkpoint import Checkpoints
from learner.storage.moment import Moment

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scored:
    """An evaluation that has finished, the moment of training whose agent it scored, and the seconds it took."""

    moment: Moment
    evaluation: Evaluation
    seconds: float


class Scoring(Protocol):
    """Scores the agent as it is at some moments of training, one evaluation at a time."""

    skipped: int
    """Evaluations that were due while another one still ran."""

    @property
    def restarts(self) -> int:
        """Times that a process which scores was started again."""

    def begin(self, agent: Agent, moment: Moment) -> Scored | None:
        """Score the agent as it is now; None if that takes a while, was skipped or was abandoned.

        Raises:
            Exception: what the evaluator raised.
        """

    def finished(self, *, wait: bool = False) -> Scored | None:
        """An evaluation that was begun earlier and has finished since; each once.

        Args:
            wait: for the one that still runs, though not for ever; when that time is over it is abandoned.

        Raises:
            CrossborderError: the evaluator failed.
        """

    def keep_best(self, agent: Agent, scored: Scored) -> None:
        """Save as ``best/`` what has just been scored.

        Raises:
            CheckpointError: it cannot be saved.
        """

    def abandon(self) -> None:
        """Score nothing from now on, and end what runs soon; from any thread."""


class EvaluationAbandoned(BaseException):
    """Ends an evaluation from within; no ``Exception``, so that an evaluator that handles those lets it through."""


class AbandonableEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose next step raises once ``abandoned`` is set: so any evaluator can be ended early.

    Args:
        env: the one to evaluate on.
        abandoned: set from another thread.
        busy: says since when the environment has been busy.
        show_life: called at each step and reset.
    """

    def __init__(
        self,
        env: Env,
        abandoned: threading.Event,
        busy: Busy | None = None,
        show_life: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(env)
        self._abandoned, self._busy, self._show_life = abandoned, busy or Busy(), show_life

    def __getattr__(self, name: str) -> Any:
        """An evaluator finds what its environment has beyond gymnasium's interface."""
        if name.startswith("_"):  # Also what copying looks for before there is an environment.
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        with self._watched():
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        with self._watched():
            return self.env.step(action)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        if self._abandoned.is_set():
            raise EvaluationAbandoned
        self._show_life()
        self._busy.since = time.monotonic()
        try:
            yield
        except SystemExit as exit_:
            raise EnvExitError(exit_) from exit_
        finally:
            self._busy.since = math.inf


class InlineScoring:
    """Training waits for an evaluation, as in border.

    Args:
        evaluator: its environment is an ``AbandonableEnv``.
        checkpoints: takes ``best/``.
        abandoned: the environment's event.
        busy: the environment's too.
        timeout_seconds: an environment that is busy for so long is reported in the log; None is not.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        checkpoints: Checkpoints,
        abandoned: threading.Event,
        busy: Busy | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        self.skipped = self.restarts = 0
        self._evaluator, self._checkpoints, self._abandoned = evaluator, checkpoints, abandoned
        self._busy, self._timeout_seconds = busy or Busy(), timeout_seconds

    def _watchdog(self) -> AbstractContextManager[None]:
        if self._timeout_seconds is None:
            return nullcontext()
        return Watchdog(self._busy, self._timeout_seconds, self._report, ends_process=False)

    def _report(self, where: str) -> None:
        log.error(
            "an environment of the evaluation has not returned for %g s (env.timeout_seconds), and training waits for "
            "it; with evaluator.process: child it would not:\n%s",
            self._timeout_seconds,
            where,
        )

    def begin(self, agent: Agent, moment: Moment) -> Scored | None:
        agent.eval()
        began = time.perf_counter()
        try:
            with self._watchdog():
                evaluation = self._evaluator.evaluate(agent)
            return Scored(moment, evaluation, time.perf_counter() - began)
        except EvaluationAbandoned:
            return None
        finally:
            agent.train()

    def finished(self, *, wait: bool = False) -> Scored | None:  # noqa: ARG002
        return None

    def keep_best(self, agent: Agent, scored: Scored) -> None:
        self._checkpoints.save("best", agent, **asdict(scored.moment), score=scored.evaluation.score)

    def abandon(self) -> None:
        self._abandoned.set()
