"""A log that nobody reads, as with a log collector that hangs: the learner goes on, and ends when it is asked to."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.conftest import HAS_ENDED, PATIENCE, ROOT, children_of, endpoints, is_alive, kill, python_of, wait_for
from tests.e2e.test_by_hand import CALM


def full_pipe() -> tuple[int, int]:
    """A pipe without room for one more byte."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(writer, b"x" * size)
        except BlockingIOError:
            pass
    os.set_blocking(writer, True)
    return reader, writer


def command_line(pid: int) -> str:
    """The words of a process; none if it has ended."""
    with suppress(*HAS_ENDED):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def ingests_of(pid: int) -> list[int]:
    return [child for child in children_of(pid) if "learner.ingest" in command_line(child) and is_alive(child)]


def test_a_learner_whose_log_nobody_reads_starts_a_killed_ingest_again_and_ends_at_a_signal(
    write_config: Callable[..., Path], tmp_path: Path
) -> None:
    config = write_config(**CALM)
    reader, writer = full_pipe()
    command = [*python_of("learner-server"), "--config", str(config)]
    learner = subprocess.Popen(command, cwd=ROOT, stdout=writer, stderr=writer)
    os.close(writer)
    try:
        endpoints(tmp_path / "run")
        (first,) = ingests_of(learner.pid)
        kill(first)
        wait_for(lambda: [pid for pid in ingests_of(learner.pid) if pid != first], "the next ingest")
        learner.send_signal(signal.SIGTERM)
        assert learner.wait(PATIENCE) == 128 + signal.SIGTERM
    finally:
        learner.kill()
        learner.wait(PATIENCE)
        os.close(reader)
