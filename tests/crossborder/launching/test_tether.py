from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.errors import ConfigError
from crossborder.launching.tether import BEAT, END
from tests.conftest import PATIENCE, ROOT

HELD = f"""
import signal, sys, threading
sys.path.insert(0, {str(ROOT)!r})
from crossborder.launching.tether import Tether, _take_stdin
life, silent, grace = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
asked = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: life == "deaf" or asked.set())
threading.Thread(target=Tether(_take_stdin(), silent, grace).hold, daemon=True).start()
sys.stdout.write(f"up {{sys.stdin.read()!r}}\\n")
sys.stdout.flush()
asked.wait()
print("last words", flush=True)
sys.exit(7)
"""
Held = subprocess.Popen[bytes]


@pytest.fixture
def hold() -> Iterator[Callable[..., Held]]:
    """Starts a process that is held by its standard input."""
    started: list[Held] = []

    def _hold(life: str = "orderly", silent: float = PATIENCE, grace: float = PATIENCE) -> Held:
        words = [sys.executable, "-P", "-c", HELD, life, str(silent), str(grace)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up ''\n"  # What it and its children read is empty.
        return process

    yield _hold
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def write(process: Held, data: bytes) -> None:
    assert process.stdin is not None
    os.write(process.stdin.fileno(), data)


def test_a_caller_that_says_end_hears_the_command_until_it_has_ended(hold: Callable[..., Held]) -> None:
    process = hold()
    write(process, BEAT + END + BEAT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"last words\n"
    assert process.wait(PATIENCE) == 7


def test_a_command_ends_in_order_when_its_caller_is_gone_and_nobody_reads_its_output(hold: Callable[..., Held]) -> None:
    process = hold()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    process.stdin.close()
    assert process.wait(PATIENCE) == 7


def test_a_command_ends_in_order_when_its_caller_is_gone_whose_socket_has_unread_output() -> None:
    caller, theirs = socket.socketpair()
    words = [sys.executable, "-P", "-c", HELD, "orderly", str(PATIENCE), str(PATIENCE)]
    with caller, theirs:
        process = subprocess.Popen(words, stdin=theirs.fileno(), stdout=theirs.fileno())
        theirs.close()
        caller.settimeout(PATIENCE)
        assert caller.recv(1, socket.MSG_PEEK) == b"u"  # The first line has come as a whole, and stays unread.
    try:
        assert process.wait(PATIENCE) == 7
    finally:
        process.kill()
        process.wait()


def test_a_command_ends_in_order_when_its_caller_is_silent(hold: Callable[..., Held]) -> None:
    assert hold(silent=0.1).wait(PATIENCE) == 7


def test_a_command_that_does_not_end_is_killed(hold: Callable[..., Held]) -> None:
    process = hold("deaf", grace=0.1)
    write(process, END)
    assert process.wait(PATIENCE) == -9


def run(directory: Path, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "crossborder.launching.tether", str(directory), *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd=ROOT, timeout=PATIENCE)


def test_a_command_before_its_own_signal_handling_ends_as_by_sigterm(tmp_path: Path) -> None:
    done = run(tmp_path, "crossborder-health", "--learner", "127.0.0.1:1", "--patience", "600")
    assert done.returncode == 143


def test_what_is_no_command_or_no_directory_is_named(tmp_path: Path) -> None:
    for done, found in (
        (run(tmp_path, "rm", "-r", "x"), "expected a command of crossborder, found 'rm'"),
        (run(tmp_path, "sys"), "expected a command of crossborder, found 'sys'"),
        (run(tmp_path, "__builtins__"), "expected a command of crossborder, found '__builtins__'"),
        (run(tmp_path / "gone", "crossborder-health"), str(tmp_path / "gone")),
    ):
        assert (done.returncode, found in done.stderr) == (ConfigError.exit_code, True)
