"""People's own parts, named ``module:attr`` in the configuration."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import PluginError
from common.hints import nearest


def load(target: str) -> Callable[..., Any]:
    """Import the callable that ``module:attr`` names; the current directory is searched too.

    Raises:
        PluginError: naming the part of the target that could not be found.
    """
    module_name, colon, attr = target.partition(":")
    if not (module_name and colon and attr) or module_name.startswith("."):
        raise PluginError(f"'{target}': expected module:attr, for example common.agents.dqn:DQN")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise PluginError(f"'{target}': cannot import module '{module_name}': {error}") from error
    found = getattr(module, attr, None)
    if not callable(found):
        raise PluginError(f"'{target}': module '{module_name}' has no callable '{attr}'{nearest(attr, vars(module))}")
    return found  # type: ignore[no-any-return]
