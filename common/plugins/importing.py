"""People's own parts, named ``module:attr`` in the configuration."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from common.errors import PluginError
from common.hints import nearest
from common.plugins.moved import present_place
from common.plugins.shipped import OWN_PACKAGES


def load_module(name: str) -> ModuleType:
    """Import a module; the current directory is searched too, last.

    Raises:
        PluginError: it cannot be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PluginError(f"cannot import module '{name}': {error}{_clash(error.name or name)}") from error


def load(target: str) -> Callable[..., Any]:
    """Import the callable that ``module:attr`` names; the current directory is searched too.

    Raises:
        PluginError: naming the part of the target that could not be found.
    """
    target = present_place(target)
    module_name, colon, attr = target.partition(":")
    if not (module_name and colon and attr) or module_name.startswith("."):
        raise PluginError(f"'{target}': expected module:attr, for example common.agents.dqn:DQN")
    try:
        module = load_module(module_name)
    except PluginError as error:
        raise PluginError(f"'{target}': {error}") from error
    found = getattr(module, attr, None)
    if not callable(found):
        raise PluginError(f"'{target}': module '{module_name}' has no callable '{attr}'{nearest(attr, vars(module))}")
    return found  # type: ignore[no-any-return]


def _clash(name: str) -> str:
    """What to do where the current directory has a package of the name of one of ours; Python has ours already."""
    package = name.partition(".")[0]
    theirs = Path.cwd() / package
    is_there = theirs.is_dir() or theirs.with_suffix(".py").is_file()
    if package not in OWN_PACKAGES or not is_there or theirs == Path(__file__).resolve().parents[2] / package:
        return ""
    return f"; '{package}' is a package of crossborder's own, which hides {theirs}: rename yours"
