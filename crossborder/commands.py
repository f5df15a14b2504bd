"""The commands as they are installed. Each first checks that Python finds crossborder's packages and what they need.

crossborder's packages are called ``common``, ``actor`` and ``learner``. Other projects use these names too, and Python
imports the first package of a name on its path. A plain ``pip install crossborder`` has only the packages that actors
need. This module checks both before it imports anything from these packages, so that a user reads advice instead of a
traceback.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGES: Final = ("common", "actor", "learner")
HOME: Final = Path(__file__).resolve().parent.parent
LEARNER_NEEDS: Final = ("grpc_reflection", "matplotlib", "prometheus_client", "rich", "safetensors", "shtab")
"""The packages that ``crossborder[learner]`` installs beyond ``crossborder``, by the names of their imports."""
NEED_LINUX: Final = {
    "actor-relay",
    "crossborder-benchmark",
    "crossborder-doctor",
    "crossborder-sweep",
    "learner-server",
    "offline-train",
    "policy-server",
    "replay-inspect",
    "sync-train",
}
"""The commands that use what only Linux has. The others run on macOS too, and none runs on Windows."""
EXIT_CODE: Final = 3
"""The exit code of ``PluginError``: a package cannot be loaded, or not on this system."""
Main = Callable[[Sequence[str] | None], int]


def find_clash() -> tuple[Path, Path] | None:
    """The places of one of our packages and of its namesake that Python finds first; None if all is well."""
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None and (found := _place(spec)) != HOME / name:
            return HOME / name, found
    return None


def _place(spec: ModuleSpec) -> Path:
    """The directory of a package, or the file of a module."""
    places = spec.submodule_search_locations
    return Path(next(iter(places)) if places else spec.origin or "").resolve()


def advise_on_system(name: str) -> tuple[str, str] | None:
    """Why a command cannot run on this system, and advice; None if it can."""
    if sys.platform == "win32":
        return (
            "expected Linux or macOS, found Windows",
            "use WSL 2; a program on Windows can also act through an acting service, with a client of docs/games.md",
        )
    if name in NEED_LINUX and sys.platform != "linux":
        return f"expected Linux, found {sys.platform}", "use Docker; actor-worker needs none: docs/installing.md"
    return None


def advise(needs: Sequence[str]) -> tuple[str, str] | None:
    """The fault of the installation and advice; None if all is well."""
    clash = find_clash()
    if clash is not None:
        expected, found = clash
        return (
            f"expected crossborder's own package {expected}, found another of that name before it: {found}",
            "rename that package, or remove its directory from PYTHONPATH; crossborder finds your own parts in "
            "the current directory without PYTHONPATH",
        )
    missing = [name for name in needs if find_spec(name) is None]
    if missing:
        return (
            f"expected the packages that a learner needs, found no {', '.join(missing)}",
            "pip install 'crossborder[learner]'; without it crossborder has only the packages that actors need",
        )
    return None


COMMANDS: Final[dict[str, Main]] = {}
"""By name, the commands below."""


def _command(name: str, module: str, needs: Sequence[str] = ()) -> Main:
    """The command ``name``, which is ``main`` of a module that imports the packages ``needs``."""

    def main(argv: Sequence[str] | None = None) -> int:
        advice = advise_on_system(name) or advise(needs)
        if advice is None:
            run: Main = importlib.import_module(module).main
            if argv is not None:  # A program has called this, and goes on after it.
                return run(argv)
            code: int = importlib.import_module("common.process.ending").end_in_time(partial(run, None))
            return code
        lines = (*advice, f"exit code {EXIT_CODE}: docs/exit-codes.md#exit-code-{EXIT_CODE}")
        sys.stderr.write("".join(f"{name}: {line}\n" for line in lines))
        return EXIT_CODE

    COMMANDS[name] = main
    return main


learner_server = _command("learner-server", "learner.commands.learner_server", LEARNER_NEEDS)
actor_worker = _command("actor-worker", "actor.commands.actor_worker")
actor_relay = _command("actor-relay", "crossborder.relaying.actor_relay")
sync_train = _command("sync-train", "learner.commands.sync_train", LEARNER_NEEDS)
offline_train = _command("offline-train", "learner.commands.offline_train", LEARNER_NEEDS)
policy_eval = _command("policy-eval", "crossborder.policies.policy_eval", LEARNER_NEEDS)
policy_export = _command("policy-export", "crossborder.policies.policy_export", LEARNER_NEEDS)
replay_inspect = _command("replay-inspect", "crossborder.inspecting.replay_inspect", LEARNER_NEEDS)
reward_train = _command("reward-train", "crossborder.rewards.reward_train", LEARNER_NEEDS)
crossborder_certs = _command("crossborder-certs", "crossborder.certificates.crossborder_certs")
crossborder_doctor = _command("crossborder-doctor", "crossborder.inspecting.crossborder_doctor", LEARNER_NEEDS)
crossborder_files = _command("crossborder-files", "crossborder.crossborder_files")
crossborder_health = _command("crossborder-health", "crossborder.inspecting.crossborder_health")
crossborder_launch = _command("crossborder-launch", "crossborder.launching.crossborder_launch")
crossborder_plot = _command("crossborder-plot", "crossborder.curves.crossborder_plot", LEARNER_NEEDS)
crossborder_ratings = _command("crossborder-ratings", "crossborder.curves.crossborder_ratings", LEARNER_NEEDS)
crossborder_teleop = _command("crossborder-teleop", "crossborder.people.crossborder_teleop")
policy_server = _command("policy-server", "crossborder.serving.policy_server", LEARNER_NEEDS)
crossborder_sweep = _command("crossborder-sweep", "crossborder.sweeps.crossborder_sweep", LEARNER_NEEDS)
crossborder_benchmark = _command("crossborder-benchmark", "crossborder.sweeps.crossborder_benchmark", LEARNER_NEEDS)
