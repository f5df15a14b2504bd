"""Environments that fail cost their episodes and nothing else, and the learner hears why."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actor.worker import Actor
from common.data import Array
from common.errors import PluginError
from common.wire.trust import Trust
from learner.loop.server import LearnerServer
from learner.shared.actor_table import ActorState
from tests.actor.test_worker import no_end
from tests.cable import Cable
from tests.conftest import PATIENCE, Command, MakeConfig, wait_for
from tests.e2e.test_counting import train_in_thread
from tests.learner.scrapes import scrape_ingest, scrape_trainer
from tests.parts import PACED, CountingEnv, check_rows
from tests.stored import stored_rows

CALM_TRAINER = {"trainer": {"max_opts": 10**9}, "replay": {"samples_per_insert": 1.6}}
"""It waits for the steps of actors, and leaves the cores to them."""
STORED_BEFORE_THE_HANG = 255
"""Steps in the full batches of rows that an actor has handed over at step 300."""


def test_an_environment_that_raises_is_built_anew_in_the_same_actor(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    params = {"marker": str(tmp_path / "raised")}
    env = {"target": "tests.parts:FailingEnv", "params": params, "rebuilds_per_minute": 5}
    with train_in_thread(make_config(env=env, **CALM_TRAINER), local_actors=1) as (server, results):
        wait_for(lambda: server.actor_table["env_steps"][0] > 1000, "it goes on")
        found = scrape_ingest(server)
        server.learner.request_stop()
    assert (tmp_path / "raised").exists()
    assert found["env_rebuilds_total"] == found["actor_env_rebuilds_total[0]"] == found["joins_total"] == 1
    (result,) = results
    assert result.samples_total == result.actors[0].env_steps, "its own end is no step"
    check_rows(stored_rows(result.run_dir))
    (told,) = [said for said in caplog.messages if said.startswith("actor 0 failed")]
    assert told.startswith("actor 0 failed (0 more before it):\n| Traceback"), told
    assert told.endswith("\n| ValueError: once only")


class Shrinking(CountingEnv):
    """Leaves out a number of its observations after a while."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs[:2] if obs[1] > 2 else obs, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("trust", "env", "told"),
    [
        (Trust(), f"{__name__}:Shrinking", "observation: expected float32 [3], found float32 [2]"),
        (Trust(allow=("nothing.of.the.learners",)), "tests.parts:CountingEnv", "names code that is not allowed"),
    ],
    ids=["values of another shape", "code that its host does not allow"],
)
def test_the_learner_hears_why_an_actor_ends(
    make_config: MakeConfig, caplog: pytest.LogCaptureFixture, trust: Trust, env: str, told: str
) -> None:
    with LearnerServer(make_config(env={"target": env})) as server:
        with pytest.raises(PluginError, match=re.escape(told)):
            Actor(server.ingest.address, PATIENCE, trust, no_end).run()
        wait_for(lambda: told in caplog.text, "the learner's log")
    assert "actor 0 failed (0 more before it):" in caplog.text


def test_an_actor_whose_environment_hangs_is_started_again_and_the_learner_hears_of_it(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = {"target": "tests.parts:HangingEnv", "params": {"marker": str(tmp_path / "hung")}, "timeout_seconds": 3.0}
    with train_in_thread(make_config(env=env, **CALM_TRAINER), local_actors=1) as (server, results):
        table = server.actor_table
        wait_for(
            lambda: max(table["env_steps"][table["state"] == ActorState.ONLINE], default=0) > 400, "another goes on"
        )
        found, restarts = scrape_ingest(server), scrape_trainer(server)["child_restarts_total[actor]"]
        server.learner.request_stop()
    assert (found["env_hangs_total"], restarts) == (1, 1)
    assert results[0].samples_total >= STORED_BEFORE_THE_HANG + 400, "what it had handed over is there"
    assert "actor 0 failed (0 more before it):\n| does not return:" in caplog.text
    assert "in step" in caplog.text


def test_a_worker_whose_environment_hangs_ends_with_a_code_of_its_own(
    make_config: MakeConfig, start: Callable[..., Command], tmp_path: Path
) -> None:
    env = {"target": "tests.parts:HangingEnv", "params": {"marker": str(tmp_path / "hung")}, "timeout_seconds": 3.0}
    with LearnerServer(make_config(env=env, server={"grace_seconds": 0.5})) as server:
        worker = start("actor-worker", "--learner", server.ingest.address)
        assert worker.wait() == 17, worker.output()
        assert server.actor_table["state"][0] == ActorState.LEFT, "its id is free"
        assert server.buffer.inserted == STORED_BEFORE_THE_HANG, "all full batches"
    assert "exit code 17: docs/exit-codes.md#exit-code-17" in worker.output()


def test_a_worker_whose_environment_hangs_while_the_learner_is_away_says_how_many_rows_it_had(
    make_config: MakeConfig, start: Callable[..., Command], tmp_path: Path
) -> None:
    hanging = {"target": "tests.parts:HangingEnv", "params": {"marker": str(tmp_path / "hung")}}
    config = make_config(env={**PACED, **hanging, "timeout_seconds": 3.0}, server={"grace_seconds": 0.5})
    with LearnerServer(config) as server, Cable(server.ingest.address) as cable:
        worker = start("actor-worker", "--learner", cable.address)
        wait_for(lambda: server.buffer.inserted > 20, "rows come")
        cable.cut()
        assert worker.wait() == 17, worker.output()
    assert re.search(r"[1-9]\d* rows were not acknowledged before the end, and may be lost", worker.output())
