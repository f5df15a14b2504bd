"""Environments that fail: the guard rebuilds an environment when it raises; the watchdog notices a hang."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final

from actor.stat import ActorCounters
from common.errors import CrossborderError, EnvHungError
from common.lanes.building import EnvExitError, build_env
from common.lanes.lanes import AnyEnv, Busy, Lanes, close_env
from common.lanes.safe_stop import SafeStop, build_safe_stop
from common.plugins.part_config import EnvConfig
from common.plugins.part_loading import first_line
from common.process.child import RestartPolicy

log = logging.getLogger(__name__)
LAST_WORDS_SECONDS = 30.0
LOOK_SECONDS: Final = 1.0
SIGNAL_SECONDS: Final = 0.25
"""A signal to several processes has reached all of them after this time."""
LEAST_ALARM_SECONDS = 600.0
"""An environment that lets no Python run ends its process at least this long after the watchdog's last look. The alarm
cannot tell it from a process that was stopped itself, so it leaves room for a pause of some minutes."""


class NotReplacedError(CrossborderError):
    """An environment has raised, and none is built in its place: its worker has to end."""


class Guard:
    """Rebuilds an environment when it raises: the ``EnvKeeper`` of an actor's lanes.

    Args:
        build: makes the next environment, or several.
        allowance: how often environments may be rebuilt.
        counters: counts rebuilds and keeps the traceback for the learner.
        busy: read by the watchdog.
        stopped: is set when the worker has to end; then nothing is rebuilt.
        stop_safely: called with an environment that raised, before another one is built.
    """

    def __init__(
        self,
        build: Callable[[], AnyEnv],
        allowance: RestartPolicy,
        counters: ActorCounters,
        busy: Busy,
        *,
        stopped: threading.Event,
        stop_safely: SafeStop = lambda _: None,
    ) -> None:
        self._build, self._allowance, self._counters, self.busy = build, allowance, counters, busy
        self._stopped, self._stop_safely = stopped, stop_safely

    def replace(self, env: AnyEnv, error: Exception | SystemExit) -> AnyEnv:
        """A new environment in the place of one that raised ``error``.

        Raises:
            NotReplacedError: the worker has to end.
            Exception: ``error``, if environments raised more often than they may, or that of the new environment.
        """
        is_lost = _is_lost(error)
        if is_lost:  # Before the wait for a signal.
            self._stop_safely(env)

        def close() -> None:
            if not is_lost:
                self._stop_safely(env)
            close_env(env)

        return self.rebuild(EnvExitError(error) if isinstance(error, SystemExit) else error, close)

    def rebuild(self, error: Exception, close: Callable[[], object]) -> AnyEnv:
        """Close what raised ``error``, and build anew. The learner hears of ``error``, and why nothing could be built.

        Raises:
            NotReplacedError, Exception: see ``replace``.
        """
        # A signal to all processes of a job ends those of a vector environment too, perhaps before this process has
        # heard of it. To build them again may take longer than the job has left.
        if self._stopped.wait(SIGNAL_SECONDS if _is_lost(error) else 0):
            log.info("an environment raised (%s), and is not rebuilt, as its worker ends", first_line(error))
            raise NotReplacedError(first_line(error)) from error
        self._note(error)
        if not self._allowance.allows():
            raise error
        log.warning("an environment, or its evaluation, raised: it is rebuilt", exc_info=error)
        self._counters.env_rebuilds += 1
        self.busy.since = time.monotonic()
        close()
        try:
            return self._build()
        except (Exception, SystemExit) as failure:
            self._note(failure)
            raise

    def _note(self, error: BaseException) -> None:
        self._counters.note_env_error("".join(traceback.format_exception(error)))


def _is_lost(error: BaseException) -> bool:
    """Whether an environment has lost a connection, perhaps since its processes have ended."""
    return isinstance(error, EOFError | OSError)


def guard_envs(lanes: Lanes, config: EnvConfig, counters: ActorCounters, busy: Busy, stopped: threading.Event) -> None:
    """From now on, rebuild an environment when it raises; see ``Guard``."""
    allowance, build = RestartPolicy(config.rebuilds_per_minute, 60.0), partial(build_env, config)
    lanes.keep(Guard(build, allowance, counters, busy, stopped=stopped, stop_safely=build_safe_stop(config)))


class Watchdog:
    """A context in which a thread notices that an environment does not return.

    An environment in native code may hold the interpreter's lock (the GIL), and then no Python thread runs, not even
    the watchdog's. So that thread also sets an alarm that needs no Python (``faulthandler``), and postpones the alarm
    each time it looks. If the thread cannot run for ``LEAST_ALARM_SECONDS`` or for twice the time, whichever is longer,
    the alarm writes all stacks to stderr and ends the process with exit code 1. A process has one such alarm, so there
    is one watchdog in a process.

    The whole process may be stopped itself, by SIGSTOP or with its host. No environment can return meanwhile, so the
    time between two looks counts as at most two intervals.

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
        self._alarm_seconds = max(LEAST_ALARM_SECONDS, 2 * seconds)
        self._watched = threading.get_ident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> None:
        self._set_alarm(self._alarm_seconds)  # Now: the environment may keep the lock before the thread first runs.
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join(timeout=1.0)

    def _watch(self) -> None:
        interval = min(LOOK_SECONDS, self._seconds / 4)
        since, is_busy_for, looked_at = math.inf, 0.0, time.monotonic()
        while is_busy_for < self._seconds:
            self._set_alarm(self._alarm_seconds)
            if self._ended.wait(interval):
                faulthandler.cancel_dump_traceback_later()
                return
            before, since = since, self._busy.since
            passed, looked_at = time.monotonic() - looked_at, time.monotonic()
            is_busy_for = is_busy_for + min(passed, 2 * interval) if since == before < math.inf else 0.0
        self._set_alarm(LAST_WORDS_SECONDS)
        self._on_hang("".join(traceback.format_stack(sys._current_frames()[self._watched])))
        faulthandler.cancel_dump_traceback_later()

    def _set_alarm(self, seconds: float) -> None:
        """End the process in ``seconds``, even if no Python runs then; each call replaces the alarm before."""
        if self._ends_process:
            faulthandler.dump_traceback_later(seconds, exit=True)


def watch_envs(
    busy: Busy,
    config: EnvConfig,
    tell: Callable[[CrossborderError], int],
    counters: ActorCounters | None = None,
    hand_over: Callable[[], object] = lambda: None,
    *,
    ends_process: bool = True,
) -> AbstractContextManager[None]:
    """A context in which an environment that does not return within ``env.timeout_seconds`` ends the process.

    Python cannot end a thread that hangs.

    Args:
        busy: see ``Watchdog``.
        config: sets the limit; without one there is no watchdog.
        tell: takes the error, says why the process ends, and returns the exit code.
        counters: counts hangs and keeps the stack for the learner; None: this process reports to no learner.
        hand_over: called before the end, in the watchdog's thread.
        ends_process: see ``Watchdog``.
    """
    if config.timeout_seconds is None:
        return nullcontext()

    def end(where: str) -> None:
        log.error("an environment does not return:\n%s", where)
        if counters is not None:
            counters.env_hangs += 1
            counters.note_env_error(f"does not return:\n{where}")
        hand_over()
        os._exit(tell(EnvHungError("an environment has not returned within env.timeout_seconds")))

    return Watchdog(busy, config.timeout_seconds, end, ends_process=ends_process)
