"""Environments that fail: the guard builds an environment anew when it raises; the watchdog notices a hang."""

from __future__ import annotations

import faulthandler
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium

from actor.stat import ActorCounters
from common.data import Array
from common.envs import Env, EnvExitError
from common.process.child import RestartPolicy

log = logging.getLogger(__name__)
LAST_WORDS_SECONDS = 30.0


class EpisodeLostError(Exception):
    """An environment raised and was built anew; its episode stops without an end."""


class Busy:
    """The monotonic time at which an environment became busy, in seconds; infinite while none is busy.

    The acting thread writes it and the watchdog's thread reads it, without a lock: it is one number, and a watchdog
    that reads it a moment too early looks again.
    """

    since = math.inf


class Guard(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that is built anew when it raises, and says when it is busy.

    Args:
        env: the first one.
        build: makes the next one.
        allowance: how often environments may be built anew; shared by the environments of one actor.
        counters: counts rebuilds and keeps the traceback for the learner.
        busy: shared by the environments of one actor too, since they are stepped in turn.
    """

    def __init__(
        self, env: Env, build: Callable[[], Env], allowance: RestartPolicy, counters: ActorCounters, busy: Busy
    ) -> None:
        super().__init__(env)
        self._build, self._allowance, self._counters, self._busy = build, allowance, counters, busy

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        """Step the environment.

        Raises:
            EpisodeLostError: it raised and was built anew; the next call must be ``reset``.
            Exception: it raised more often than it may.
        """
        self._busy.since = time.monotonic()
        try:
            return self.env.step(action)
        except (Exception, SystemExit) as error:
            self._rebuild(EnvExitError(error) if isinstance(error, SystemExit) else error)
            raise EpisodeLostError from error
        finally:
            self._busy.since = math.inf

    def reset(self, *, seed: int | None = None, **options: Any) -> tuple[Array, dict[str, Any]]:
        """Reset the environment; while it raises, build it anew and reset it again.

        Raises:
            Exception: environments raised more often than they may.
        """
        try:
            while True:
                self._busy.since = time.monotonic()
                try:
                    return self.env.reset(seed=seed, **options)
                except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is logged or raised again
                    self._rebuild(EnvExitError(error) if isinstance(error, SystemExit) else error)
                    seed = None  # The seed may have led to the error. Without one a new environment draws its own.
        finally:
            self._busy.since = math.inf

    def _rebuild(self, error: Exception) -> None:
        self._counters.note_env_error("".join(traceback.format_exception(error)))
        if not self._allowance.allows():
            raise error
        log.warning("an environment raised and is built anew", exc_info=error)
        self._counters.env_rebuilds += 1
        self._busy.since = time.monotonic()
        try:
            self.env.close()
        except Exception:
            log.warning("the environment that raised could not be closed", exc_info=True)
        self.env = self._build()


class Watchdog:
    """A context in which a thread notices that an environment does not return.

    An environment in native code may hold the interpreter's lock (the GIL), and then no Python thread runs, not even
    the watchdog's. So that thread also sets an alarm that needs no Python (``faulthandler``), and postpones the alarm
    each time it looks. If the thread cannot run, the alarm writes all stacks to stderr and ends the process with exit
    code 1, after twice the time. A process has one such alarm, so there is one watchdog in a process.

    Args:
        busy: written by the thread that makes this object.
        seconds: that an environment may be busy.
        on_hang: called once, in the watchdog's thread, with the stack of the thread that hangs. The alarm gives it
            ``LAST_WORDS_SECONDS``.
        ends_process: whether to set the alarm. A trainer does not: its process has more to do than its environment.
    """

    def __init__(
        self, busy: Busy, seconds: float, on_hang: Callable[[str], None], *, ends_process: bool = True
    ) -> None:
        self._busy, self._seconds, self._on_hang, self._ends_process = busy, seconds, on_hang, ends_process
        self._watched = threading.get_ident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join(timeout=1.0)

    def _watch(self) -> None:
        remaining = self._seconds
        while remaining > 0:
            self._set_alarm(remaining + self._seconds)
            if self._ended.wait(remaining):
                faulthandler.cancel_dump_traceback_later()
                return
            remaining = self._seconds + min(0.0, self._busy.since - time.monotonic())
        self._set_alarm(LAST_WORDS_SECONDS)
        self._on_hang("".join(traceback.format_stack(sys._current_frames()[self._watched])))
        faulthandler.cancel_dump_traceback_later()

    def _set_alarm(self, seconds: float) -> None:
        """End the process in ``seconds``, even if no Python runs then; each call replaces the alarm before."""
        if self._ends_process:
            faulthandler.dump_traceback_later(seconds, exit=True)
