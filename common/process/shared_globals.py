"""The globals of a process that crossborder shares with users' code, and keeps from it.

An environment, or a library under it, may change the working directory, torch's default dtype, numpy's error handling
or the handlers of signals. Users' code is imported and built within ``keeping_globals``, which puts these values back.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from common.process.signals import STOP_SIGNALS

log = logging.getLogger(__name__)


def _directory() -> Path | None:
    """The working directory; None if somebody has removed it."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _set_directory(path: Path | None) -> None:
    if path is not None:
        os.chdir(path)


def _dtype() -> str:
    """The name of torch's default dtype. It does not import torch, without which ingest starts faster."""
    torch = sys.modules.get("torch")
    return str(torch.get_default_dtype()) if torch is not None else "torch.float32"


def _set_dtype(name: str) -> None:
    torch = sys.modules["torch"]
    torch.set_default_dtype(getattr(torch, name.removeprefix("torch.")))


_GLOBALS: Final[dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]] = {
    "the working directory": (_directory, _set_directory),
    "torch's default dtype": (_dtype, _set_dtype),
    "numpy's error handling": (np.geterr, lambda modes: np.seterr(**modes)),
}
"""By name in the log, how a value is read and how it is set."""


@contextmanager
def keeping_globals(part: str) -> Iterator[None]:
    """A context in which users' code runs. At its end, the values that the code has changed are put back.

    Args:
        part: names the code in the warning about each value that it has changed.
    """
    before = {name: read() for name, (read, _) in _GLOBALS.items()}
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for name, (read, put) in _GLOBALS.items():
            if (found := read()) != before[name]:
                log.warning("%s changes %s from %s to %s: this is undone", part, name, before[name], found)
                put(before[name])
        _put_handlers_back(part, handlers)


def _put_handlers_back(part: str, handlers: dict[signal.Signals, Any]) -> None:
    """Set the handlers of signals again, also where they seem unchanged: Python does not see what C code has set."""
    if threading.current_thread() is not threading.main_thread():
        return  # Here Python code cannot set handlers.
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
            log.warning("%s takes the signal %s: this is undone", part, number.name)
        if handler is not None:  # None: C code had set it before.
            signal.signal(number, handler)
