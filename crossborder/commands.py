"""The commands as they are installed. Each sees first that Python finds crossborder's packages, and no others.

They are called ``common``, ``actor`` and ``learner``, as packages of many people are, and Python takes the first of a
name that it finds. So this module imports none of them before it has looked.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGES: Final = ("common", "actor", "learner")
HOME: Final = Path(__file__).resolve().parent.parent
CLASH_CODE: Final = 3
"""As of parts that cannot be loaded."""
Main = Callable[[Sequence[str] | None], int]


def find_clash() -> tuple[Path, Path] | None:
    """Where one of our packages is, and where Python finds another of its name before it; None if all is well."""
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None and (found := _place(spec)) != HOME / name:
            return HOME / name, found
    return None


def _place(spec: ModuleSpec) -> Path:
    """The directory of a package, or the file of a module."""
    places = spec.submodule_search_locations
    return Path(next(iter(places)) if places else spec.origin or "").resolve()


def _command(name: str, module: str) -> Main:
    """The command ``name``, which is ``main`` of a module."""

    def main(argv: Sequence[str] | None = None) -> int:
        clash = find_clash()
        if clash is None:
            code: int = importlib.import_module(module).main(argv)
            return code
        expected, found = clash
        sys.stderr.write(
            f"{name}: expected crossborder's own package {expected}, found another of that name before it: {found}\n"
            f"{name}: rename that package, or take the directory it is in off PYTHONPATH; parts of yours are found in "
            "the current directory without that\n"
            f"{name}: exit code {CLASH_CODE}: docs/exit-codes.md#exit-code-{CLASH_CODE}\n"
        )
        return CLASH_CODE

    return main


learner_server = _command("learner-server", "learner.commands.learner_server")
actor_worker = _command("actor-worker", "actor.commands.actor_worker")
sync_train = _command("sync-train", "learner.commands.sync_train")
offline_train = _command("offline-train", "learner.commands.offline_train")
policy_eval = _command("policy-eval", "learner.commands.policy_eval")
policy_export = _command("policy-export", "learner.commands.policy_export")
replay_inspect = _command("replay-inspect", "learner.commands.replay_inspect")
crossborder_certs = _command("crossborder-certs", "learner.commands.crossborder_certs")
crossborder_health = _command("crossborder-health", "actor.commands.crossborder_health")
