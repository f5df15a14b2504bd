from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import PATIENCE, ROOT

COMMAND = """
import ctypes, subprocess, sys
from pathlib import Path
from common.process.command import Parser, run_command
from common.process.streams import answers

def act(arguments):
    print("from Python")
    ctypes.CDLL(None).write(1, b"from C\\n", 7)
    subprocess.run(["echo", "from a child"])
    print("an open line", end="")
    for number in range(10_000):
        answers().write(f"answer {number}\\n")
    sys.stderr.write("from the log\\n")
    Path(arguments.done).touch()

parser = Parser("brew", "makes tea", "")
parser.add_argument("--done")
sys.exit(run_command(parser, None, act))
"""
PRINTED = ("from Python", "from C", "from a child", "an open line", "from the log")


def words(done: Path) -> list[str]:
    return [sys.executable, "-c", COMMAND, "--done", str(done)]


def test_stdout_has_the_answers_and_what_others_print_goes_to_stderr(tmp_path: Path) -> None:
    ended = subprocess.run(
        words(tmp_path / "done"), cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert ended.stdout.splitlines() == [f"answer {number}" for number in range(10_000)]
    assert [text for text in PRINTED if text not in ended.stderr] == []


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    process = subprocess.Popen(words(tmp_path / "done"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"answer 0\n"
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(PATIENCE) == 0


def test_a_command_works_to_its_end_if_nobody_reads_stdout_and_stderr(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(words(tmp_path / "done"), cwd=ROOT, stdout=writer, stderr=writer)
    os.close(reader)
    os.close(writer)
    assert process.wait(PATIENCE) == 0
    assert (tmp_path / "done").exists()


def test_a_command_works_if_its_caller_has_closed_its_streams(tmp_path: Path) -> None:
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    assert subprocess.run([*shell, *words(tmp_path / "done")], cwd=ROOT, check=False, timeout=PATIENCE).returncode == 0
    assert (tmp_path / "done").exists()
