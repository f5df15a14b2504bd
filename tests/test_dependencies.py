"""What pyproject.toml installs: few packages for actors, and with ``crossborder[learner]`` those of learners."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from crossborder.commands import LEARNER_NEEDS
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OURS = ("crossborder", "learner", "actor", "common")
IMPORT_ALL_OF_AN_ACTOR = """
import json, pkgutil, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))  # Imports of these raise.
import actor, common, crossborder
for package in (actor, common, crossborder):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.startswith(("common.envs.atari", *json.loads(sys.argv[2]))):
            __import__(module.name)
print(json.dumps(sorted({name.partition(".")[0] for name, module in sys.modules.items() if module is not None})))
"""
NOT_OF_ACTORS = (
    "crossborder.certificates.authority",
    "crossborder.curves.",
    "crossborder.inspecting.",
    "crossborder.notebook",
    "crossborder.policies.",
    "crossborder.rewards.training",
    "crossborder.serving.",
    "crossborder.sweeps.",
    "crossborder.testing",
)
"""Modules of crossborder's own that import what extras bring."""


def names(requirements: list[str]) -> set[str]:
    """The distributions that are asked for, extras of our own aside."""
    return {str(canonicalize_name(Requirement(each).name)) for each in requirements} - {"crossborder"}


@cache
def owners() -> dict[str, set[str]]:
    """The distributions that provide each package, by the name under which it is imported. To look takes a second."""
    return {package: {canonicalize_name(each) for each in found} for package, found in packages_distributions().items()}


def imported_names(distributions: set[str]) -> set[str]:
    """The packages that distributions provide, by the names under which they are imported."""
    return {package for package, found in owners().items() if found & distributions}


ACTOR_HAS = names(PROJECT["dependencies"])
OTHERS_HAVE = {name for extra, wanted in EXTRAS.items() if extra != "dev" for name in names(wanted)} - ACTOR_HAS


def test_an_actor_imports_all_that_a_plain_install_brings_and_nothing_else() -> None:
    absent = sorted(imported_names(OTHERS_HAVE) - imported_names(ACTOR_HAS))
    assert {*LEARNER_NEEDS} <= {*absent}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL_OF_AN_ACTOR, json.dumps(absent), json.dumps(NOT_OF_ACTORS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {*json.loads(done.stdout)}
    for distribution in ACTOR_HAS:
        assert imported_names({distribution}) & found, f"an actor never imports {distribution}"


def test_what_a_learner_needs_beyond_an_actor_is_what_its_extra_installs() -> None:
    assert {*LEARNER_NEEDS} <= imported_names(names(EXTRAS["learner"]))
    for distribution in names(EXTRAS["learner"]):
        assert imported_names({distribution}) & {*LEARNER_NEEDS}, f"commands do not look for {distribution}"


def test_the_generated_code_runs_with_the_oldest_grpcio_and_protobuf_that_may_be_installed() -> None:
    allowed = {found.name: found.specifier for found in map(Requirement, PROJECT["dependencies"])}
    folder = ROOT / "common" / "wire" / "pb"
    for distribution, file, line in (
        ("protobuf", "crossborder_pb2.py", r"^# Protobuf Python Version: (\S+)$"),
        ("grpcio", "crossborder_pb2_grpc.py", r"^GRPC_GENERATED_VERSION = '(\S+)'$"),
    ):
        found = re.search(line, (folder / file).read_text(), re.MULTILINE)
        assert found is not None
        oldest = min(Version(bound.version) for bound in allowed[distribution] if bound.operator == ">=")
        assert Version(found[1]) <= oldest, f"generated for {distribution} {found[1]}, but {oldest} may be installed"


def test_every_package_that_is_imported_is_asked_for() -> None:
    graph = grimp.build_graph(*OURS, include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None)
    foreign = {module for module in graph.modules if graph.is_module_squashed(module)} - sys.stdlib_module_names
    assert foreign >= {*LEARNER_NEEDS}
    assert foreign - imported_names(ACTOR_HAS | OTHERS_HAVE) == set()


@pytest.mark.parametrize("extra", ["export", "lerobot", "mlflow", "offline", "sweep", "tensorboard", "video", "wandb"])
def test_an_extra_that_only_a_learner_uses_brings_what_a_learner_needs(extra: str) -> None:
    assert "crossborder[learner]" in EXTRAS[extra]
