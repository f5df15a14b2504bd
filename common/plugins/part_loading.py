"""Loads the parts that a configuration names as ``module:attr``, crossborder's own and users' alike."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from common.errors import CrossborderError, FaultError, PluginError, describe_error
from common.hints import closest, nearest
from common.home import naming_missing_home
from common.plugins.shipped import OWN_PACKAGES, SHORT_NAMES
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


def _device() -> str:
    """The name of torch's default device."""
    torch = sys.modules.get("torch")
    # torch.get_default_device() raises in torch 2.8 after a default device was set and unset.
    return str(torch.empty(0).device) if torch is not None else "cpu"


def _set_device(name: str) -> None:
    # Without a default device, torch computes on the CPU too, and each of its calls is faster than with one.
    sys.modules["torch"].set_default_device(None if name == "cpu" else name)


def _gradients() -> str:
    """Whether torch computes gradients in this thread."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.is_inference_mode_enabled():
        return "inference mode"
    return "on" if torch is None or torch.is_grad_enabled() else "off"


def _set_gradients(mode: str) -> None:
    torch = sys.modules["torch"]
    is_inference = mode == "inference mode"
    if torch.is_inference_mode_enabled() != is_inference:
        entered = torch.inference_mode(is_inference)
        entered.__enter__()
        _ENTERED.append(entered)
    torch.set_grad_enabled(mode == "on")


_ENTERED: Final[list[Any]] = []
"""Modes of torch that must stay as they were set: torch leaves a mode when its object is gone."""
_GLOBALS: Final[dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]] = {
    "the working directory": (_directory, _set_directory),
    "torch's default dtype": (_dtype, _set_dtype),
    "torch's default device": (_device, _set_device),
    "torch's gradients": (_gradients, _set_gradients),
    "numpy's error handling": (np.geterr, lambda modes: np.seterr(**modes)),
}
"""By name in the log, how a value is read and how it is set."""


@contextmanager
def keeping_globals(part: str) -> Iterator[None]:
    """A context in which users' code is imported and built. At its end, the values that it has changed are put back.

    An environment, or a library under it, may change the working directory, torch's default dtype and device, whether
    torch computes gradients, numpy's error handling, the log or the handlers of signals.
    """
    before = {name: read() for name, (read, _) in _GLOBALS.items()}
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        with _keeping_log(part):
            yield
    finally:
        for name, (read, put) in _GLOBALS.items():
            if (found := read()) != before[name]:
                log.warning("%s changes %s from %s to %s: this is undone", part, name, before[name], found)
                put(before[name])
        _put_handlers_back(part, handlers)


@contextmanager
def _keeping_log(part: str) -> Iterator[None]:
    """A context at whose end our log says as much as before. Handlers that users' code has added stay.

    ``logging.config`` turns off all loggers that it is not told to leave on, and may take the handlers of the root.
    """
    root = logging.getLogger()
    level, handlers, least = root.level, [*root.handlers], root.manager.disable
    off = [logger for logger in _own_loggers() if logger.disabled]
    try:
        yield
    finally:
        lost = [handler for handler in handlers if handler not in root.handlers]
        turned_off = [logger for logger in _own_loggers() if logger.disabled and logger not in off]
        if lost or turned_off or root.level > level or root.manager.disable > least:
            root.setLevel(level)
            logging.disable(least)
            for handler in lost:
                root.addHandler(handler)
            for logger in turned_off:
                logger.disabled = False
            log.warning("%s changes the log: this is undone", part)


def _own_loggers() -> list[logging.Logger]:
    found = [*logging.root.manager.loggerDict.values()]  # A copy: another thread may make a logger.
    loggers = [logger for logger in found if isinstance(logger, logging.Logger)]
    return [logger for logger in loggers if logger.name.partition(".")[0] in OWN_PACKAGES]


def _put_handlers_back(part: str, handlers: dict[signal.Signals, Any]) -> None:
    """Set the handlers of signals again, also where they seem unchanged: Python does not see what C code has set."""
    if threading.current_thread() is not threading.main_thread():
        return  # Here Python code cannot set handlers.
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
            log.warning("%s takes the signal %s: this is undone", part, number.name)
        if handler is not None:  # None: C code had set it before.
            signal.signal(number, handler)


def load_module(name: str) -> ModuleType:
    """Import a module. The current directory is searched too, after all other places.

    Globals that the module changes are put back, see ``keeping_globals``.

    Raises:
        PluginError: the module cannot be imported; a ``FaultError`` if its own code raised an exception.
    """
    here = _directory()
    if here is not None and str(here) not in sys.path:
        sys.path.append(str(here))
    try:
        with keeping_globals(f"the import of {name}"), naming_missing_home(f"the import of {name}"):
            return importlib.import_module(name)
    except ImportError as error:
        raise PluginError(f"cannot import module '{name}': {error}{_clash_hint(error.name or name)}") from error
    except CrossborderError:
        raise
    except (Exception, SystemExit) as error:  # The code of the module runs: it may raise anything.
        raise FaultError(f"cannot import module '{name}': {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The kind of an exception, and the first line of its message."""
    kind, _, message = describe_error(error).partition(": ")
    return ": ".join([kind, *message.strip().splitlines()[:1]])


@contextmanager
def naming_fault(place: str) -> Iterator[None]:
    """A context that builds a user's part, which may raise anything.

    Raises:
        FaultError: in the place of an error that is no ``CrossborderError``; its message begins with ``place``.
    """
    try:
        yield
    except CrossborderError:
        raise
    except Exception as error:
        raise FaultError(f"{place}: {first_line(error)}") from error


def load_part(target: str) -> Callable[..., Any]:
    """Import the callable that ``module:attr`` names. The current directory is searched too, after all other places.

    Raises:
        PluginError: there is no such module, or it has no such callable.
    """
    module_name, colon, attr = target.partition(":")
    if not (module_name and colon and attr) or module_name.startswith("."):
        in_full = SHORT_NAMES.get(target)
        hint = f" (here, write {in_full})" if in_full else closest(target, SHORT_NAMES)
        raise PluginError(
            f"'{target:.200}': expected module:attr, such as my_parts:MyAgent, or the short name of a part of "
            f"crossborder, such as DQN{hint}"
        )
    try:
        module = load_module(module_name)
    except PluginError as error:
        raise type(error)(f"'{target}': {error}") from error.__cause__
    found = getattr(module, attr, None)
    if not callable(found):
        raise PluginError(f"'{target}': module '{module_name}' has no callable '{attr}'{nearest(attr, vars(module))}")
    return found  # type: ignore[no-any-return]


def _clash_hint(name: str) -> str:
    """A hint for a user's package in the current directory that is not found because one of ours has the same name."""
    package = name.partition(".")[0]
    here, ours = _directory(), Path(__file__).resolve().parents[2] / package
    if here is None or package not in OWN_PACKAGES:
        return ""
    theirs = here / package
    is_there = theirs.is_dir() or theirs.with_suffix(".py").is_file()
    if not is_there or theirs == ours:
        return ""
    return f"; '{package}' is also a package of crossborder, which hides {theirs}: rename your package"
