"""``make`` finds a Python of the host that can run crossborder; here, Pythons are scripts in a directory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

MAKE = shutil.which("make")
PRETENDING = """#!/bin/sh
exec {python} -c 'import sys
sys.version_info = ({version})
{absence}
exec(sys.argv[1])' "$2"
"""
"""Runs the program after ``-c`` as a Python of another version does."""
BROKEN = "#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n"
"""A shim that exists and does not run."""

pytestmark = pytest.mark.skipif(MAKE is None, reason="make is not installed")


def put_python(directory: Path, name: str, *version: int, has_ensurepip: bool = True) -> None:
    """Put a script in place that answers as a Python of ``version``; without a version, as a broken one."""
    absence = "" if has_ensurepip else "sys.modules['ensurepip'] = None"
    as_text = ", ".join(map(str, version))
    script = PRETENDING.format(python=sys.executable, version=as_text, absence=absence.replace("'", '"'))
    (directory / name).write_text(script if version else BROKEN)
    (directory / name).chmod(0o755)


def make_venv(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Ask ``make`` what it would run for a new .venv, with the programs of a directory."""
    venv = path / "venv"
    return subprocess.run(
        [str(MAKE), "--dry-run", f"VENV={venv}", *options, f"{venv}/bin/python"],
        cwd=ROOT,
        env={"PATH": str(path), "REPOSITORY_URL": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def chosen_python(path: Path, *options: str) -> str:
    """The word with which the command that makes .venv begins."""
    done = make_venv(path, *options)
    assert done.returncode == 0, done.stderr
    command, _, rest = done.stdout.partition(" ")
    assert rest == f"-m venv {path}/venv\n"
    return command


@pytest.mark.parametrize("minor", [11, 12, 13, 14])
def test_python3_is_taken_if_it_is_new_enough(tmp_path: Path, minor: int) -> None:
    put_python(tmp_path, "python3", 3, minor)
    put_python(tmp_path, "python3.14", 3, 14)
    assert chosen_python(tmp_path) == "python3"


def test_the_newest_that_runs_is_taken_in_the_place_of_an_old_python3(tmp_path: Path) -> None:
    put_python(tmp_path, "python3", 3, 10)
    put_python(tmp_path, "python3.14")
    put_python(tmp_path, "python3.13", 3, 13, has_ensurepip=False)
    put_python(tmp_path, "python3.12", 3, 12)
    put_python(tmp_path, "python3.11", 3, 11)
    assert chosen_python(tmp_path) == "python3.12"


def test_a_python_that_is_named_is_taken_as_it_is(tmp_path: Path) -> None:
    put_python(tmp_path, "python3", 3, 12)
    assert chosen_python(tmp_path, "PYTHON=/opt/python/bin/python3") == "/opt/python/bin/python3"


def test_where_no_python_will_do_the_error_says_what_to_install(tmp_path: Path) -> None:
    put_python(tmp_path, "python3", 3, 10)
    put_python(tmp_path, "python3.13")
    put_python(tmp_path, "python3.12", 3, 12, has_ensurepip=False)
    done = make_venv(tmp_path)
    assert done.returncode == 2
    assert "expected Python 3.11 or newer" in done.stderr
    assert "apt-get install python3-venv" in done.stderr


def test_a_venv_that_is_there_needs_no_python_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    put_python(tmp_path / "venv" / "bin", "python", 3, 11)
    done = make_venv(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "-m venv" not in done.stdout
