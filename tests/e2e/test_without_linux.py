"""Actors on a system with POSIX and without what Linux alone has, in place of macOS, which we have none of."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from common.cores import write_cores
from common.system import usable_cores
from tests.conftest import ROOT, Command, endpoints, free_port, wait_for
from tests.e2e.test_by_hand import CALM
from tests.learner.scrapes import scrape

Start = Callable[..., Command]
HERE = Path(__file__).parent / "without_linux"


@pytest.fixture
def start_actors(start: Start) -> Start:
    def _start(*arguments: str) -> Command:
        path = f"PYTHONPATH={HERE}:{ROOT}"
        return start("actor-worker", "--learner", *arguments, prefix=["env", path])

    return _start


def test_actors_work_there_until_their_learner_ends(
    start_actors: Start, start: Start, write_config: Callable[..., Path], tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    server = start("learner-server", "--config", str(write_config(**CALM)), "--listen", address)
    actors = start_actors(address, "--num-actors", "2", "--allow", "tests")
    wait_for(lambda: actors.output().count("joined run") == 2, "both actors act")
    port = endpoints(tmp_path / "run")["trainer_metrics_port"]
    wait_for(lambda: scrape(port)["opt_steps_total"] > 0, "the learner learns from their rows")
    server.signal(signal.SIGINT)
    assert server.wait() == 130, server.output()
    assert actors.wait() == 0, actors.output()
    assert "Traceback" not in actors.output()


def test_an_actor_there_cannot_be_bound_to_cores(start_actors: Start) -> None:
    worker = start_actors("127.0.0.1:1", "--cores", write_cores(usable_cores()))
    assert worker.wait() == 2
    assert "--cores: expected Linux, which can bind a process to cores, found darwin" in worker.output()
