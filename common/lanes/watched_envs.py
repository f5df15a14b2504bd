"""Watches the environments of evaluations, and can end an evaluation from within them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium

from common.lanes.building import EnvExitError
from common.lanes.lanes import AnyEnv, Busy
from common.lanes.pace import Pace
from common.lanes.vector_lanes import is_vector
from common.process.signals import put_signals_back


class EvaluationAbandoned(BaseException):
    """Ends an evaluation from within its environment.

    It is no ``Exception``, so a user's evaluator that catches every ``Exception`` lets it through.
    """


class Watch:
    """Ends evaluations from within their environments, and knows when an environment is busy.

    Every evaluator steps its environment, so ``EvaluationAbandoned`` ends any evaluator early; the evaluator needs no
    code for this.

    Args:
        abandoned: the event after which each call into an environment raises; another thread sets it.
        busy: is told when a call into an environment begins and ends, for a ``Watchdog``.
        show_life: called at each step and reset.
    """

    def __init__(
        self,
        abandoned: threading.Event,
        busy: Busy | None = None,
        show_life: Callable[[], None] = lambda: None,
    ) -> None:
        self.abandoned, self.busy, self._show_life = abandoned, busy or Busy(), show_life
        self._stops: list[Callable[[], None]] = []

    def over(self, env: AnyEnv, pace: Pace | None = None) -> AnyEnv:
        """An environment, plain or vector, whose steps and resets are watched.

        Args:
            env: the environment.
            pace: that the steps of a plain environment keep; None: each step begins at once.
        """
        return _WatchedVectorEnv(env, self) if is_vector(env) else _WatchedEnv(env, self, pace)

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """A context for an environment that ``stop`` stops safely: at the context's end, and at ``rest``."""
        self._stops.append(stop)
        try:
            yield
        finally:
            self.rest()
            self._stops.remove(stop)

    def rest(self) -> None:
        """Stop all environments safely: no agent steps them for a while."""
        before, self.busy.since = self.busy.since, time.monotonic()
        for stop in self._stops:
            stop()
        self.busy.since = before  # An environment that is being built again stays busy.

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context for each call into an environment."""
        if self.abandoned.is_set():
            raise EvaluationAbandoned
        self._show_life()
        self.busy.since = time.monotonic()
        try:
            yield
        except SystemExit as exit_:
            raise EnvExitError(exit_) from exit_
        finally:
            self.busy.since = math.inf
            put_signals_back(time.monotonic())  # An evaluation may take hours.


class _WatchedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: AnyEnv, watch: Watch, pace: Pace | None) -> None:
        super().__init__(env)
        self._watch, self._pace = watch, pace

    def __getattr__(self, name: str) -> Any:
        """Give an evaluator the attributes that its environment has beyond gymnasium's interface."""
        if name.startswith("_"):  # A copy is asked for such names before it has its environment.
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._pace is not None:
            self._pace.begin()
        with self._watch.watching():
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self._pace is not None and not self._pace.wait():
            raise EvaluationAbandoned
        with self._watch.watching():
            return self.env.step(action)


class _WatchedVectorEnv:
    """Passes on all that a vector environment has; it need not be one of gymnasium's."""

    def __init__(self, env: AnyEnv, watch: Watch) -> None:
        self._env, self._watch = env, watch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, **given: Any) -> Any:
        with self._watch.watching():
            return self._env.reset(**given)

    def step(self, actions: Any) -> Any:
        with self._watch.watching():
            return self._env.step(actions)
