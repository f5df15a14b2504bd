from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from crossborder import commands
from tests.conftest import ROOT

SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
NEED_NO_LEARNER = {
    "actor-relay",
    "actor-worker",
    "crossborder-certs",
    "crossborder-files",
    "crossborder-health",
    "crossborder-launch",
    "crossborder-teleop",
}


def run(
    name: str, *path: Path, cwd: Path, without: Sequence[str] = (), system: str = "linux"
) -> subprocess.CompletedProcess[str]:
    """A command as it is installed, with a search path before the rest, and as if some packages were not installed."""
    module, _, attr = SCRIPTS[name].partition(":")
    call = f"sys.platform = '{system}'; sys.exit({attr}(['--help']))"
    return python(f"from {module} import {attr}; {call}", *path, cwd=cwd, without=without)


def python(code: str, *path: Path, cwd: Path, without: Sequence[str]) -> subprocess.CompletedProcess[str]:
    hide = f"import sys; sys.modules.update(dict.fromkeys({[*without]}))"
    return subprocess.run(
        [sys.executable, "-P", "-c", f"{hide}; {code}"],
        env={"PYTHONPATH": ":".join(map(str, path))},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_command_calls_the_function_of_its_name() -> None:
    assert {name: f"crossborder.commands:{name.replace('-', '_')}" for name in SCRIPTS} == SCRIPTS


@pytest.mark.parametrize(
    ("name", "package"),
    [*(("learner-server", package) for package in commands.PACKAGES), ("actor-worker", commands.PACKAGES[0])],
)
def test_the_error_names_a_package_of_our_name_that_is_found_first_and_the_remedy(
    name: str, package: str, tmp_path: Path
) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise AssertionError('imported')")
    told = run(name, tmp_path, ROOT, cwd=tmp_path)
    assert told.returncode == 3
    assert f"{name}: expected crossborder's own package {ROOT / package}, found another" in told.stderr
    assert f"before it: {tmp_path / package}\n{name}: rename that package" in told.stderr
    assert "Traceback" not in told.stderr


def test_a_module_of_our_name_is_found_too(tmp_path: Path) -> None:
    (tmp_path / "actor.py").touch()
    told = run("actor-worker", tmp_path, ROOT, cwd=tmp_path)
    assert (told.returncode, str(tmp_path / "actor.py") in told.stderr) == (3, True)


def test_a_package_of_our_name_that_is_not_found_first_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").touch()
    assert run("learner-server", ROOT, cwd=tmp_path).returncode == 0


def test_a_learners_command_on_an_actor_host_names_the_extra_to_install(tmp_path: Path) -> None:
    names = sorted({*SCRIPTS} - NEED_NO_LEARNER)
    calls = (
        f"[(print(name, file=sys.stderr), print(getattr(commands, name.replace('-', '_'))([]))) for name in {names}]"
    )
    told = python(f"from crossborder import commands; {calls}", ROOT, cwd=tmp_path, without=["rich", "shtab"])
    assert (told.returncode, told.stdout) == (0, "3\n" * len(names))
    for name, error in zip(names, re.split(r"^\S+\n", told.stderr, flags=re.MULTILINE)[1:], strict=True):
        assert error.startswith(
            f"{name}: expected the packages that a learner needs, found no rich, shtab\n{name}: pip"
        )
        assert "crossborder[learner]" in error


@pytest.mark.parametrize("name", sorted(NEED_NO_LEARNER))
def test_the_commands_of_actors_and_certificates_need_no_package_of_a_learner(name: str, tmp_path: Path) -> None:
    told = run(name, ROOT, cwd=tmp_path, without=commands.LEARNER_NEEDS)
    assert (told.returncode, told.stderr) == (0, "")


@pytest.mark.parametrize("name", ["actor-worker", "crossborder-health", "learner-server"])
def test_no_command_runs_on_windows_and_it_says_what_does(name: str, tmp_path: Path) -> None:
    told = run(name, ROOT, cwd=tmp_path, system="win32")
    assert (told.returncode, told.stdout) == (3, "")
    assert told.stderr.startswith(f"{name}: expected Linux or macOS, found Windows\n{name}: use WSL 2; a program on")


@pytest.mark.parametrize("name", sorted(commands.NEED_LINUX))
def test_on_macos_a_command_that_needs_linux_says_so(name: str, tmp_path: Path) -> None:
    told = run(name, ROOT, cwd=tmp_path, system="darwin")
    assert told.returncode == 3
    assert f"{name}: expected Linux, found darwin\n{name}: use Docker; actor-worker needs none" in told.stderr
