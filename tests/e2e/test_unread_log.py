"""A log that nobody reads, as with a log collector that hangs: the learner goes on, and ends when it is asked to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, ROOT, endpoints, entry_of, fork_server, kill, named, wait_for
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


@pytest.mark.own_children
def test_a_learner_whose_log_nobody_reads_starts_a_killed_ingest_again_and_ends_at_a_signal(
    write_config: Callable[..., Path], tmp_path: Path
) -> None:
    config = write_config(**CALM)
    reader, writer = full_pipe()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ["--config", str(config)]
    learner = fork_server().start_into(writer, entry_of("learner-server"), words, cwd=ROOT, environment=environment)
    os.close(writer)
    try:
        endpoints(tmp_path / "run")
        (first,) = named("ingest", learner.pid)
        kill(first)
        wait_for(lambda: [pid for pid in named("ingest", learner.pid) if pid != first], "the next ingest")
        learner.send_signal(signal.SIGTERM)
        assert learner.wait(PATIENCE) == 128 + signal.SIGTERM
    finally:
        learner.kill()
        learner.wait(PATIENCE)
        os.close(reader)
