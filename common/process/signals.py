"""Ctrl-C and SIGTERM: the first asks for an orderly end, the second ends at once (children notice and end too)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class StopSignals:
    """Calls ``on_stop`` on the first signal, or raises KeyboardInterrupt while there is none; the second exits."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.on_stop: Callable[[], None] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = number
        if self.on_stop is None:
            raise KeyboardInterrupt
        # In a thread: the interrupted code may hold the very lock that stopping needs.
        threading.Thread(target=self.on_stop, name="stop").start()

    def ignore(self) -> None:
        """The command is over and its exit code decided: a late signal must not kill it while Python winds up."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # Any other handler would be taken away before Python has ended.

    @property
    def exit_code(self) -> int:
        """128 + the signal, as shells have it; 0 without one."""
        return 128 + self.received if self.received else 0
