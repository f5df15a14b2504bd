from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crossborder.sweeps.directory import SweepDirectory
from crossborder.sweeps.study import SweepStudy
from crossborder.sweeps.sweep_config import load_sweep
from tests.crossborder.sweeps.test_study import finish, open_study

PARTS = {
    "opens": """
import os, signal, sys
from pathlib import Path
from tests.crossborder.sweeps.test_journal import open_there
study = open_there()
""",
    "is_killed": "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\nstudy.claim()\n",
    "has_a_full_disk": """
import resource
size = Path("sweep/study.journal").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, resource.RLIM_INFINITY))
try:
    study.claim()
except OSError as error:
    sys.exit(error.errno)
""",
    "goes_on": """
from tests.crossborder.sweeps.test_study import finish
finish(study, 2)
""",
}


def open_there() -> SweepStudy:
    """The study of the current directory, by relative paths, as a user's command has them."""
    return SweepStudy(SweepDirectory(Path("sweep"), load_sweep(Path("worth.yaml"))))


def run(part: str, directory: Path) -> int:
    """Run a process in the directory that opens its study and does this; its exit code."""
    command = [sys.executable, "-c", PARTS["opens"] + PARTS[part]]
    env = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    return subprocess.run(command, cwd=directory, env=env, check=False, timeout=300).returncode


@pytest.mark.parametrize(
    ("part", "code"), [("is_killed", -signal.SIGKILL), ("has_a_full_disk", 27)], ids=["killed", "full disk"]
)
def test_a_process_that_ends_while_it_writes_a_line_stops_no_later_process(
    part: str, code: int, tmp_path: Path
) -> None:
    study = open_study(tmp_path, space={"a": [1, 2]})
    finish(study, 0)
    assert run(part, tmp_path) == code
    assert run("goes_on", tmp_path) == 0
    assert [trial.value for trial in study.finished()] == [0.0, 1.0]
