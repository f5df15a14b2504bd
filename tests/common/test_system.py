"""Each stand-in for what only Linux has, beside the original."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from common.system import above_other_threads, allocate, bind_threads, find_exit_code, usable_cores, wait_for_end

pytestmark = pytest.mark.parametrize("system", ["linux", "darwin"])


@pytest.fixture(autouse=True)
def on_system(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)


@pytest.mark.parametrize("size", [1, 5_000_000])
def test_a_file_gets_its_place_on_the_disk(size: int, tmp_path: Path) -> None:
    with tempfile.TemporaryFile(dir=tmp_path) as file:
        allocate(file.fileno(), size)
        assert os.fstat(file.fileno()).st_size == size
        assert os.fstat(file.fileno()).st_blocks * 512 >= size
        assert not any(file.read())


@pytest.mark.parametrize(("program", "code"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9)])
def test_the_end_of_a_process_is_waited_for_and_its_code_is_known(program: str, code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", f"input(); {program}"], stdin=subprocess.PIPE) as process:
        assert find_exit_code(process) is None
        wait_for_end(process.pid, 0.01)
        process.communicate(b"\n")
        while find_exit_code(process) is None:
            wait_for_end(process.pid, 60)
        assert find_exit_code(process) == code


def test_threads_have_cores_and_go_on_in_order() -> None:
    cores = usable_cores()
    assert cores == tuple(sorted(cores))
    assert 1 <= len(cores) <= (os.cpu_count() or 1)
    bind_threads(cores)
    with above_other_threads():
        assert usable_cores() == cores
