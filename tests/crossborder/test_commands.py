from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from crossborder import commands
from tests.conftest import ROOT

SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def run(name: str, *path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command as it is installed, with a search path before the rest."""
    module, _, attr = SCRIPTS[name].partition(":")
    return subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; from {module} import {attr}; sys.exit({attr}(['--help']))"],
        env={"PYTHONPATH": ":".join(map(str, path))},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_each_command_is_the_one_of_its_name(name: str) -> None:
    assert SCRIPTS[name] == f"crossborder.commands:{name.replace('-', '_')}"


@pytest.mark.parametrize("package", commands.PACKAGES)
@pytest.mark.parametrize("name", ["learner-server", "actor-worker"])
def test_a_package_of_our_name_that_is_found_first_is_named_and_what_to_do(
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


def test_a_package_of_our_name_that_is_not_found_first_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").touch()
    assert run("learner-server", ROOT, cwd=tmp_path).returncode == 0
