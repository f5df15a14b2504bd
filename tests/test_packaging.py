"""The wheel and the sources that `make wheel` builds are complete: commands run from them, without a clone."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from common.interfaces import Agent
from common.plugins.shipped import OWN_PACKAGES
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
Run = Callable[..., str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with both files."""
    directory = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--directory", str(directory)], cwd=ROOT, check=True)
    return directory


@pytest.fixture(scope="module")
def run(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a command of a new virtual environment that has the wheel, in an empty directory; what it printed.

    The environment borrows torch and the other packages from the one of the tests, but not crossborder: that is
    installed there by a .pth file, which Python does not read from a borrowed directory.
    """
    home = tmp_path_factory.mktemp("host")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    (packages,) = (home / "venv" / "lib").glob("python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    (wheel,) = built.glob("*.whl")

    def _run(*words: str | Path) -> str:
        command, *rest = map(str, words)
        done = subprocess.run(
            [home / "venv" / "bin" / command, *rest],
            cwd=home,
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    _run("python", "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", wheel)
    assert str(packages) in _run("python", "-P", "-c", "import common; print(common.__file__)")
    return _run


def test_the_sources_have_every_file_of_the_repository(built: Path) -> None:
    listing = ["git", "ls-files"]
    tracked = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        inside = {name.partition("/")[2] for name in sources.getnames()}
    assert {name for name in tracked.splitlines() if (ROOT / name).exists()} - inside == set()


def test_each_command_is_installed_and_one_without_arguments_of_its_own_runs(run: Run) -> None:
    listing = "from importlib.metadata import entry_points as e; print(*[s.name for s in e(group='console_scripts')])"
    assert {*PROJECT["scripts"]} <= {*run("python", "-P", "-c", listing).split()}
    assert "usage: actor-worker" in run("actor-worker", "--help")


def test_the_wheel_has_the_door_and_the_types_that_type_checkers_look_for(run: Run) -> None:
    assert run("python", "-P", "-c", "import crossborder; print(crossborder.Agent)") == f"{Agent}\n"
    listing = "import importlib, pathlib; print(*(importlib.import_module(name).__path__[0] for name in {names}))"
    packages = run("python", "-P", "-c", listing.format(names=OWN_PACKAGES)).split()
    assert [path for path in packages if not (Path(path) / "py.typed").is_file()] == []


def test_a_configuration_that_the_wheel_brings_is_one_that_its_learner_can_train(run: Run) -> None:
    run("crossborder-files", "files")
    assert "cartpole: good. Rows: " in run("sync-train", "--config", "files/configs/cartpole.yaml", "--check")


def test_pip_finds_crossborder_and_an_extra_there_without_asking_an_index(run: Run) -> None:
    """Messages say `pip install 'crossborder[…]'`: it installs what the extra lacks, whatever crossborder came from."""
    told = run("python", "-m", "pip", "install", "--no-index", "--dry-run", "crossborder[learner]")
    assert f"crossborder=={PROJECT['version']}" in told.replace(" ", "==") or "already satisfied" in told
    assert "Would install" not in told
