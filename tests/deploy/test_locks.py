"""What the images install is pinned by hash and fits pyproject.toml; the builder itself checks that it is whole."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

DOCKER = ROOT / "docker"
LOCKS = sorted(DOCKER.glob("*.lock"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ACTOR_WANTS = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
LEARNER_WANTS = [*ACTOR_WANTS, *EXTRAS["learner"], *EXTRAS["certs"]]


def entries(lock: str) -> list[str]:
    """Each package with its hashes."""
    text = (DOCKER / lock).read_text().replace("\\\n", "")
    return [line for line in text.splitlines() if line and not line.startswith(("#", "--"))]


def pins(*locks: str) -> dict[str, str]:
    """The version of each package."""
    found = (entry.split()[0].partition("==") for lock in locks for entry in entries(lock))
    return {canonicalize_name(name): version for name, _, version in found}


@pytest.mark.parametrize("lock", [path.name for path in LOCKS])
def test_every_package_is_pinned_to_one_version_and_its_hashes(lock: str) -> None:
    assert entries(lock)
    for entry in entries(lock):
        assert re.fullmatch(r"[\w.-]+==\S+(\s+--hash=sha256:[0-9a-f]{64})+\s*", entry), entry[:80]


@pytest.mark.parametrize("torch", ["torch-cpu.lock", "torch-cuda.lock"])
@pytest.mark.parametrize("image", ["actor", "learner"])
def test_requirements_of_pyproject_are_locked_within_their_ranges(image: str, torch: str) -> None:
    locks = ["actor.lock"] if image == "actor" else ["actor.lock", "learner.lock"]
    locked = pins(*locks, torch)
    for wanted in map(Requirement, ACTOR_WANTS if image == "actor" else LEARNER_WANTS):
        assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)].partition("+")[0])


def test_the_locks_of_actor_and_learner_share_no_package_and_the_learners_has_its_extra() -> None:
    actor, learner = pins("actor.lock"), pins("learner.lock")
    assert not {*actor} & {*learner}
    assert {canonicalize_name(Requirement(wanted).name) for wanted in EXTRAS["learner"]} <= {*learner}


@pytest.mark.parametrize("wanted", PROJECT["build-system"]["requires"])
def test_the_packages_that_build_the_wheel_are_locked(wanted: str) -> None:
    requirement = Requirement(wanted)
    assert requirement.specifier.contains(pins("build.lock")[requirement.name])


def test_both_builds_of_torch_are_of_one_version_and_share_what_else_they_need() -> None:
    cpu, cuda, others = pins("torch-cpu.lock"), pins("torch-cuda.lock"), pins("actor.lock", "learner.lock")
    assert cpu["torch"] == f"{cuda['torch']}+cpu"
    assert {name: cuda[name] for name in set(cuda) & set(others)} == {
        name: others[name] for name in set(cuda) & set(others)
    }
