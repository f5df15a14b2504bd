from __future__ import annotations

import json
import math
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import ConfigError
from common.process.standard_streams import answer_json
from tests.conftest import PATIENCE, ROOT, wait_for

COMMAND = """
import ctypes, subprocess, sys
from pathlib import Path
from common.process.command import Parser, command_of
from common.process.standard_streams import answers

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
sys.exit(command_of(lambda: parser, act)(None))
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


def test_json_has_texts_for_the_numbers_that_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    answer_json({"obs": [[1.5, math.nan], (math.inf,)], "score": -math.inf, "done": True, "name": None})

    def refuse(constant: str) -> None:
        raise AssertionError(f"expected JSON, found {constant}")

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found == {"obs": [[1.5, "NaN"], ["Infinity"]], "score": "-Infinity", "done": True, "name": None}


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


PRINTING = """
import sys
from common.process.command import Parser, command_of

sys.exit(command_of(lambda: Parser("brew", "makes tea", ""), lambda _: print(100_000_000 * "x"))(None))
"""


def test_a_large_text_is_printed_to_its_end() -> None:
    """If all that remains were copied for each piece that is written, this would take a quarter of an hour."""
    words = [sys.executable, "-c", PRINTING]
    ended = subprocess.run(words, cwd=ROOT, stderr=subprocess.DEVNULL, check=False, timeout=PATIENCE)
    assert ended.returncode == 0


def test_a_large_text_reaches_its_reader_whole() -> None:
    """More of it is printed than a pipe has room for."""
    words = [sys.executable, "-c", PRINTING.replace("100_000_000", "1_000_000")]
    ended = subprocess.run(words, cwd=ROOT, stderr=subprocess.PIPE, check=True, timeout=PATIENCE)
    assert ended.stderr == 1_000_000 * b"x" + b"\n"


CLOSING = """
import logging, sys
from common.errors import ConfigError
from common.process.standard_streams import answer_json
from common.process.command import Parser, command_of

def act(arguments):
    sys.stdout.close()
    sys.stderr.close()
    print("from Python")
    logging.getLogger("kettle").info("it boils")
    raise ConfigError("no tea")

sys.exit(command_of(lambda: Parser("brew", "makes tea", ""), act)(None))
"""


def test_users_code_that_closes_the_streams_silences_no_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CLOSING], cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert ended.returncode == ConfigError.exit_code
    assert [text for text in ("from Python", "it boils", "brew: no tea") if text not in ended.stderr] == []


FULL = """
import logging, sys
from common.errors import ConfigError
from common.process.standard_streams import answer_json
from common.process.command import Parser, command_of

def act(arguments):
    logging.getLogger("kettle").info("it boils")
    print("from Python")
    if arguments.fails:
        raise ConfigError("no tea")

parser = Parser("brew", "makes tea", "")
parser.add_argument("--fails", action="store_true")
sys.exit(command_of(lambda: parser, act)(None))
"""


ANSWERING = """
import sys
from common.process.command import Parser, command_of
from common.process.standard_streams import answers

parser = Parser("brew", "makes tea", "")
parser.add_argument("text")
sys.exit(command_of(lambda: parser, lambda arguments: answers().write(arguments.text))(None))
"""


@pytest.mark.parametrize(("more", "code"), [([], 0), (["--fails"], 2)])
def test_a_log_on_a_full_disk_changes_no_exit_code(more: list[str], code: int) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", FULL, *more], cwd=ROOT, stderr=full, check=False, timeout=PATIENCE
        )
    assert ended.returncode == code


@pytest.mark.parametrize("text", ["done\n", "".join(f"answer {n}\n" for n in range(10_000))])
def test_answers_on_a_full_disk_are_missed_with_an_error_that_says_so(text: str) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", ANSWERING, text],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    assert ended.stderr.splitlines() == [
        "brew: standard output: cannot be written: No space left on device",
        "brew: exit code 2: docs/exit-codes.md#exit-code-2",
    ]
    assert ended.returncode == ConfigError.exit_code


LOGGING = """
import logging, sys
from pathlib import Path
from common.process.log import setup_logging

done, form = sys.argv[1:]
setup_logging(form=form)
for number in range(30_000):
    logging.getLogger("kettle").info("%d %s", number, 50 * "x")
Path(done).touch()
sys.stdin.readline()
logging.getLogger("kettle").info("30000 last")
sys.stdin.readline()
"""


def start_logging(done: Path, form: str, stderr: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", LOGGING, str(done), form]
    return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stderr=stderr, text=True)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_that_nobody_reads_keeps_its_order_and_says_how_many_lines_were_left_out(
    tmp_path: Path, form: str
) -> None:
    process = start_logging(tmp_path / "done", form, subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    wait_for((tmp_path / "done").exists, "the end of logging")
    lines = [process.stderr.readline() for _ in range(5_000)]  # Then there is room for the last line.
    process.stdin.write("\n")
    process.stdin.flush()
    for line in process.stderr:
        lines.append(line)
        if "30000 last" in line:
            break
    process.stdin.close()  # Only now: a process that ends waits for a second for its reader.
    process.stderr.close()
    assert process.wait(PATIENCE) == 0
    if form == "json":
        lines = [json.loads(line)["message"] for line in lines]
    numbers = [int(found[1]) for line in lines if (found := re.search(r"(\d+) (x{50}|last)$", line.rstrip()))]
    (left_out,) = (int(found[1]) for line in lines if (found := re.search(r"(\d+) lines were left out here", line)))
    assert numbers == sorted(numbers)
    assert left_out > 10_000
    assert len(numbers) + left_out == 30_001
    assert numbers[-1] == 30_000


def test_a_terminal_that_hangs_stops_nobody(tmp_path: Path) -> None:
    terminal, given = pty.openpty()
    process = start_logging(tmp_path / "done", "text", given)
    os.close(given)
    wait_for((tmp_path / "done").exists, "the end of logging")
    process.communicate("\n\n", timeout=PATIENCE)
    assert process.returncode == 0
    os.close(terminal)


FORKING = """
import logging, os
from common.process.log import setup_logging

setup_logging()
logging.warning("by the parent")
if os.fork() == 0:
    logging.warning("by the fork")
    os._exit(0)
os.wait()
"""


def test_what_a_fork_logs_is_written_too() -> None:
    terminal, given = pty.openpty()
    subprocess.run([sys.executable, "-c", FORKING], cwd=ROOT, stderr=given, check=True, timeout=PATIENCE)
    os.close(given)
    assert {*re.findall(rb"by the (\w+)", os.read(terminal, 4096))} == {b"parent", b"fork"}
    os.close(terminal)
