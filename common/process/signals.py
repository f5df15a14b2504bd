"""Ctrl-C, SIGTERM and SIGHUP: the first signal asks for an orderly end, the second ends the process at once.

Children then end too: they notice that their stdin is closed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


def leave_to_parent() -> None:
    """Do nothing at Ctrl-C, SIGTERM and SIGHUP: this process ends when its parent says so, or when the parent is gone.

    SLURM and systemd signal all processes of a job or a service at the same time. A child that ended at once could not
    do its part in its parent's orderly end. Programs that this process starts get the default handling again.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _do_nothing)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    return None


class StopSignals:
    """Calls ``on_stop`` at the first signal, or raises KeyboardInterrupt while it is None; exits at the second."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.on_stop: Callable[[], None] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # With nohup(1) it stays ignored.
            signal.signal(signal.SIGHUP, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = number
        if self.on_stop is None:
            raise KeyboardInterrupt
        # Python runs this handler in the main thread, between two instructions of other code. That code may hold a lock
        # that ``on_stop`` takes: called here, ``on_stop`` would wait forever. In a thread it waits for that code.
        threading.Thread(target=self.on_stop, name="stop").start()

    def hold(self) -> None:
        """Only note a first signal from now on; the caller sets ``on_stop`` later, and then looks at ``received``."""
        self.on_stop = lambda: None

    def ignore(self) -> None:
        """Ignore signals from now on.

        A command calls this when its exit code is decided: a late signal must not change the code while Python exits.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # Python removes all other handlers before it has exited.

    @property
    def exit_code(self) -> int:
        """128 + the signal that was received, as in shells; 0 if none was."""
        return 128 + self.received if self.received else 0
