"""Loads the parts that a configuration names as ``module:attr``, crossborder's own and users' alike."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from common.errors import PluginError
from common.hints import nearest
from common.home import naming_missing_home
from common.plugins.shipped import OWN_PACKAGES
from common.process.shared_globals import keeping_globals

log = logging.getLogger(__name__)

MOVED: Final = {
    "common.atari:make": "common.envs.atari:make",
    "learner.evaluation.evaluator:DefaultEvaluator": "common.evaluation:DefaultEvaluator",
    "learner.evaluator:DefaultEvaluator": "common.evaluation:DefaultEvaluator",
    "learner.mlflow:MlflowRecorder": "learner.records.mlflow:MlflowRecorder",
    "learner.recorder:CsvRecorder": "learner.records.csv_recorder:CsvRecorder",
    "learner.tensorboard:TensorBoardRecorder": "learner.records.tensorboard:TensorBoardRecorder",
}
"""The present places of moved parts, by their old places; a configuration that names an old place still works."""


def load_module(name: str) -> ModuleType:
    """Import a module. The current directory is searched too, after all other places.

    Globals that the module changes are put back, see ``keeping_globals``.

    Raises:
        PluginError: the module cannot be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        with keeping_globals(f"the import of {name}"), naming_missing_home(f"the import of {name}"):
            return importlib.import_module(name)
    except ImportError as error:
        raise PluginError(f"cannot import module '{name}': {error}{_clash_hint(error.name or name)}") from error


def load_part(target: str) -> Callable[..., Any]:
    """Import the callable that ``module:attr`` names. The current directory is searched too, after all other places.

    Raises:
        PluginError: there is no such module, or it has no such callable.
    """
    target = find_present_place(target)
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


@functools.cache  # So a part that has moved is logged once in each process.
def find_present_place(target: str) -> str:
    """The place where a part is now, as ``module:attr``; logs a warning if that is not ``target``."""
    place = MOVED.get(target, target)
    if place != target:
        log.warning("%s has moved: write %s in the configuration", target, place)
    return place


def _clash_hint(name: str) -> str:
    """A hint for a user's package in the current directory that is not found because one of ours has the same name."""
    package = name.partition(".")[0]
    theirs, ours = Path.cwd() / package, Path(__file__).resolve().parents[2] / package
    is_there = theirs.is_dir() or theirs.with_suffix(".py").is_file()
    if package not in OWN_PACKAGES or not is_there or theirs == ours:
        return ""
    return f"; '{package}' is also a package of crossborder, which hides {theirs}: rename your package"
