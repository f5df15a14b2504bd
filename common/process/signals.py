"""Ctrl-C, SIGTERM and SIGHUP: the first signal asks for an orderly end, a second one ends the process at once.

Children then end too: they notice that their stdin is closed.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from common.process.clocks import Deadline
from common.process.standard_streams import hurry

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PUT_BACK_SECONDS: Final = 0.1
"""The least time between two times that handlers are put back, which takes 10 us, as long as nobody has taken them."""
NOTICE_SECONDS: Final = 1.0
"""A wait of the main thread that has no deadline of its own lasts this long, and begins again.

Python runs a handler in the main thread, between two instructions. A signal that comes just before the thread begins to
wait, or that the system gives to another thread, does not end the wait: it is handled after it.
"""
ECHO_SECONDS: Final = 2 * NOTICE_SECONDS
"""Signals that come so soon after the first one are the same request.

``timeout`` and ``pkill -f`` send a signal to a command that gets it from another program too. systemd may send it to a
whole service, in which a parent passes it on once it has noticed it.
"""
_handlers: dict[signal.Signals, Any] = {}
"""By signal, the handler that this process needs."""
_next_put_back = 0.0
"""The monotonic time from which on handlers are put back again; infinitely early once somebody has taken one. Only the
main thread uses it."""


def _handle(number: signal.Signals, handler: Any) -> None:
    """Set the handler of a signal; ``put_signals_back`` sets it again."""
    _handlers[number] = handler
    signal.signal(number, handler)


def put_signals_back(now: float) -> None:
    """Set this process's handlers again, which a library under an environment may have replaced.

    Call this after each call into an environment: most calls take 0.05 us and do nothing. Handlers are put back at most
    every ``PUT_BACK_SECONDS``, also where they seem unchanged: Python does not see a handler that a library has set
    from C. But if Python sees that a handler was taken, it may be taken again at each reset, so from then on each call
    puts the handlers back. Only the main thread can set handlers; in other threads, calls do nothing.

    Args:
        now: a monotonic time that the caller knows: that of now, or of the begin of its call into the environment.
    """
    global _next_put_back  # noqa: PLW0603 - see there
    if now < _next_put_back or threading.current_thread() is not threading.main_thread():
        return
    was_taken = [signal.signal(number, handler) != handler for number, handler in _handlers.items()]
    if any(was_taken):
        _next_put_back = -math.inf
    elif _next_put_back > -math.inf:
        _next_put_back = time.monotonic() + PUT_BACK_SECONDS


def leave_to_parent() -> None:
    """Do nothing at Ctrl-C, SIGTERM and SIGHUP: this process ends when its parent says so, or when the parent is gone.

    SLURM and systemd signal all processes of a job or a service at the same time. A child that ended at once could not
    do its part in its parent's orderly end. Programs that this process starts get the default handling again.
    """
    for number in STOP_SIGNALS:
        _handle(number, _do_nothing)


def leave_to_default() -> None:
    """Give the signals that this process leaves to the one that forked it their default handling again."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is _do_nothing:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@contextmanager
def delaying_interrupt(on_stop: Callable[[], None], message: str) -> Iterator[None]:
    """In this context the first Ctrl-C calls ``on_stop``, and raises KeyboardInterrupt at the end of the context.

    So it does not break off an opt step. A second Ctrl-C raises at once. This is for a program that has started no
    ``StopSignals``, such as a notebook. In a thread, or if the program handles Ctrl-C by itself, this does nothing.

    Args:
        on_stop: asks for the orderly end of the work in the context.
        message: of the KeyboardInterrupt at the end.

    Raises:
        KeyboardInterrupt: Ctrl-C has come.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    received = False

    def take(_number: int, _frame: FrameType | None) -> None:
        nonlocal received
        if received:
            raise KeyboardInterrupt
        received = True
        _call_in_thread(on_stop)

    _handle(signal.SIGINT, take)
    try:
        yield
    finally:
        _handlers.pop(signal.SIGINT, None)  # A process that was forked in this context has none any more.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if received:
        raise KeyboardInterrupt(message)


def _call_in_thread(on_stop: Callable[[], None]) -> None:
    """Call ``on_stop`` in a thread.

    Python runs a handler in the main thread, between two instructions of other code. That code may hold a lock that
    ``on_stop`` takes: called there, ``on_stop`` would wait forever. In a thread it waits for that code.
    """
    threading.Thread(target=on_stop, name="stop").start()


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    return None


_forking = threading.local()
"""Its ``mask`` has the signals that were blocked in this thread before it forked."""


def _block_sigterm() -> None:
    """Before a fork: block SIGTERM until the new process has its own handlers.

    Python would drop a SIGTERM that comes before, as by ``terminate()`` directly after the fork.
    """
    if _handlers:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock_sigterm() -> None:
    mask = _forking.__dict__.pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _leave_to_forker() -> None:
    """In every process that is forked from one with handlers: SIGTERM ends it, as ``multiprocessing`` expects.

    The other signals do nothing: a terminal sends them to this process too, and its parent ends it.
    """
    for number in _handlers:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else _do_nothing)
    _handlers.clear()
    _unblock_sigterm()


os.register_at_fork(before=_block_sigterm, after_in_parent=_unblock_sigterm, after_in_child=_leave_to_forker)


class StopSignals:
    """Calls ``on_stop`` at the first signal, or raises KeyboardInterrupt while there is none; exits at a second one.

    A second signal within ``ECHO_SECONDS`` does nothing.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._echo = Deadline(math.inf)  # Until then further signals are the same request.
        self._on_stop: Callable[[], None] | None = None
        self._holds = self._is_told = False
        for number in (signal.SIGINT, signal.SIGTERM):
            _handle(number, self._take)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # With nohup(1) it stays ignored.
            _handle(signal.SIGHUP, self._take)

    @property
    def on_stop(self) -> Callable[[], None] | None:
        """What ends the command in order. If a signal has come before this is set, it is called at once.

        That signal was held, or Python has swallowed its KeyboardInterrupt: it does so in finalizers and callbacks.
        """
        return self._on_stop

    @on_stop.setter
    def on_stop(self, on_stop: Callable[[], None]) -> None:
        self._on_stop = on_stop
        if self.received is not None and not self._is_told:  # A signal that comes between the lines is told by itself.
            self._tell(on_stop)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            if self._echo.passed():
                os._exit(128 + number)
            return
        self.received = number  # First of all: another signal may come between two instructions.
        self._echo = Deadline(ECHO_SECONDS)
        hurry()
        if self._on_stop is not None:
            self._tell(self._on_stop)
        elif not self._holds:
            raise KeyboardInterrupt

    def _tell(self, on_stop: Callable[[], None]) -> None:
        self._is_told = True
        _call_in_thread(on_stop)

    def hold(self) -> None:
        """Only note a first signal from now on, until ``on_stop`` is set."""
        self._holds = True

    def ignore(self) -> None:
        """Ignore signals from now on.

        A command calls this when its exit code is decided: a late signal must not change the code while Python exits.
        """
        for number in STOP_SIGNALS:
            _handle(number, signal.SIG_IGN)  # Python removes all other handlers before it has exited.

    @property
    def exit_code(self) -> int:
        """128 + the signal that was received, as in shells; 0 if none was."""
        return 128 + self.received if self.received else 0
