"""The .proto alone is enough: an actor written in another language from it works with a real learner."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config.run_config import RunConfig, load_config
from common.envs import spec_of
from common.processors import NStep, OneStep
from examples.own_parts import Corridor
from tests.conftest import PATIENCE, ROOT, kill, wait_for
from tests.e2e.test_counting import stored_items, train_in_thread

NODE = shutil.which("node")
HERE = ROOT / "examples" / "node"
SCHEMA = OneStep().schema(spec_of(Corridor()))
pytestmark = pytest.mark.skipif(
    not (NODE and (HERE / "node_modules").is_dir()), reason="needs node and `make node-actor`"
)
Start = Callable[[str], "subprocess.Popen[str]"]


def corridor(run_dir: Path, *overrides: str) -> RunConfig:
    free = "server.listen=127.0.0.1:0", "metrics.trainer_port=0", "metrics.ingest_port=0", f"run_dir={run_dir}"
    return load_config(ROOT / "examples" / "own_parts.yaml", (*free, *overrides))


@pytest.fixture
def node() -> Iterator[Start]:
    """Starts the actor; one that still runs at the end of the test is killed."""
    actors: list[subprocess.Popen[str]] = []

    def _start(address: str) -> subprocess.Popen[str]:
        command = [str(NODE), "corridor.mjs", address]
        actors.append(subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return actors[-1]

    yield _start
    for actor in actors:
        actor.kill()
        actor.communicate()


def summary(actor: subprocess.Popen[str]) -> dict[str, Any]:
    """What it says when it has ended well."""
    out, err = actor.communicate(timeout=PATIENCE)
    assert actor.returncode == 0, err
    said: dict[str, Any] = json.loads(out)
    return said


def assert_one_walk(items: dict[str, Any]) -> None:
    """Each item begins where the one before it ended: none is lost, none is there twice, and all are in order."""
    done = items["terminated"] | items["truncated"]
    begins = np.where(done[:-1, None], 0, items["next_obs"][:-1])
    assert (items["obs"][1:] == begins).all()


def test_what_it_pushes_trains_the_agent_and_it_says_goodbye(tmp_path: Path, node: Start) -> None:
    with train_in_thread(corridor(tmp_path / "run"), local_actors=0) as (server, results):
        said = summary(node(server.ingest.address))
    (result,) = results
    assert result.best_score >= 0.9
    assert said["unacked"] == 0
    assert said["env_steps"] == result.samples_total == sum(stat.env_steps for stat in result.actors)


def test_nothing_is_lost_or_stored_twice_when_ingest_is_killed(tmp_path: Path, node: Start) -> None:
    endless = "trainer.max_opts=1000000", "trainer.target_score=null", "replay.capacity=1000000"
    with train_in_thread(corridor(tmp_path / "run", *endless), local_actors=0) as (server, results):
        actor = node(server.ingest.address)
        for kills in (1, 2):
            before = server.buffer.inserted
            wait_for(lambda before=before: server.buffer.inserted > before + 500, "items flow")  # type: ignore[misc]
            kill(server.ingest.pid)
            wait_for(lambda kills=kills: server.ingest.restarts == kills, "the restart")  # type: ignore[misc]
        goal = server.buffer.inserted + 500
        wait_for(lambda: server.buffer.inserted > goal, "items flow again")
        server.learner.request_stop()
        said = summary(actor)
    (result,) = results
    assert said["reconnects"] == 2
    assert said["env_steps"] == result.samples_total
    assert_one_walk(stored_items(result.run_dir, SCHEMA))


def test_items_that_it_does_not_make_are_named(tmp_path: Path, node: Start) -> None:
    n_step = f"step_processor.target={NStep.__module__}:{NStep.__name__}"
    with train_in_thread(corridor(tmp_path / "run", n_step), local_actors=0) as (server, _):
        actor = node(server.ingest.address)
        _, err = actor.communicate(timeout=PATIENCE)
        assert "column discount: expected 32 values" in err
        assert actor.returncode == 1
