"""The life of an actor as its learner and its log tell it."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from learner.shared.actor_table import ActorState
from tests.conftest import Command, MakeConfig, kill, wait_for
from tests.e2e.test_by_hand import CALM
from tests.e2e.test_counting import train_in_thread
from tests.learner.scrapes import scrape_ingest

Start = Callable[..., Command]
HANDSHAKE, LOST = 3.0, 9.0
"""Seconds; a busy machine may let an actor that is well wait for one or two."""
SERVER = {"lost_seconds": LOST, "grace_seconds": 30.0}
TRAINER = {"max_opts": 10**9}
REPLAY = {"samples_per_insert": 1.6}
"""The trainer waits for the steps of actors, and leaves the cores to them."""


MACHINES = ("--log-format", "json")


def slow(busy: Path) -> dict[str, object]:
    """An environment that is not built before ``busy`` is gone."""
    return {"target": "tests.parts:SlowlyBuiltEnv", "params": {"busy": str(busy)}}


def test_an_actor_that_builds_for_long_is_building_and_keeps_its_place(
    make_config: MakeConfig, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    busy = tmp_path / "busy"
    with train_in_thread(
        make_config(env=slow(busy), server=SERVER, trainer=TRAINER, replay=REPLAY), local_actors=0
    ) as (server, _):
        busy.touch()
        actor = start("actor-worker", "--learner", server.ingest.address)
        table = server.actor_table
        wait_for(lambda: table["state"][0] == ActorState.BUILDING, "the actor builds")
        began = time.monotonic()
        wait_for(lambda: time.monotonic() - began > LOST + HANDSHAKE, "longer than a silent actor keeps its place")
        found = scrape_ingest(server)
        assert [found[f"actors[{state}]"] for state in ("building", "online", "away", "lost")] == [1, 0, 0, 0]
        busy.unlink()
        wait_for(lambda: table["env_steps"][0] > 0, "it acts")
        assert table["state"][0] == ActorState.ONLINE
        assert scrape_ingest(server)["joins_total"] == 1
    assert actor.wait() == 0, actor.output()
    assert not [said for said in caplog.messages if "lost" in said]


def test_a_learner_that_stops_does_not_wait_for_an_actor_that_builds(
    make_config: MakeConfig, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    busy = tmp_path / "busy"
    config = make_config(env=slow(busy), server={**SERVER, "grace_seconds": 10_000.0}, trainer=TRAINER, replay=REPLAY)
    with train_in_thread(config, local_actors=0) as (server, results):
        busy.touch()
        actor = start("actor-worker", "--learner", server.ingest.address)
        wait_for(lambda: server.actor_table["state"][0] == ActorState.BUILDING, "the actor builds")
    assert results, "the run has ended"
    assert server.actor_table["state"][0] == ActorState.LEFT
    busy.unlink()
    assert actor.wait() == 0, actor.output()


def test_every_line_of_an_actors_log_says_of_which_run_and_which_actor_it_is(
    make_config: MakeConfig, start: Start
) -> None:
    with train_in_thread(make_config(**CALM), local_actors=0) as (server, _):
        table, address, run_id = server.actor_table, server.ingest.address, server.run.dir.identity.run_id
        commands = []
        for n_actors, words in ((1, MACHINES), (3, ("--num-actors", "2", *MACHINES)), (4, ())):
            commands.append(start("actor-worker", "--learner", address, *words))
            wait_for(lambda n=n_actors: (table["env_steps"] > 0).sum() == n, "the actors act")  # type: ignore[misc]
        one, two, plain = commands
        kill(server.ingest.pid)
        wait_for(lambda: (table["reconnects"] > 0).sum() == 4, "the actors are back")
        for actor in (one, two):
            actor.signal(signal.SIGTERM)
            assert actor.wait() == 128 + signal.SIGTERM
    assert plain.wait() == 0, plain.output()
    assert_for_machines(one, run_id, address, [0])
    assert_for_machines(two, run_id, address, [1, 2])
    lines, of_actor_3 = plain.output().splitlines(), rf"(INFO|WARNING) +\[run {run_id} actor 3\] actor\."
    assert len(lines) > 1
    assert all(re.search(of_actor_3, line) for line in lines), plain.output()


def assert_for_machines(actor: Command, run_id: str, address: str, actor_ids: list[int]) -> None:
    """Every line is an object, with its run and its id."""
    lines = [line for line in actor.output().splitlines() if not line.startswith("actor ")]  # Those are on stdout.
    entries = [json.loads(line) for line in lines]
    for actor_id in actor_ids:
        own = [entry["message"] for entry in entries if entry.get("actor_id") == actor_id]
        assert own[0] == f"joined run {run_id} as actor {actor_id} of {address}"
        assert any(said.startswith("connection to the learner lost") for said in own)
        assert any(said.startswith(f"joined run {run_id} again as actor {actor_id} after ") for said in own)
    of_actors = [entry for entry in entries if "pusher" in entry["logger"] or "fetcher" in entry["logger"]]
    assert {entry["run_id"] for entry in of_actors} == {run_id}


def test_a_learner_that_was_told_to_stop_starts_no_local_actor_again(make_config: MakeConfig) -> None:
    """A signal to all processes of a job ends its actors too, and may reach them first."""
    with train_in_thread(make_config(**CALM), 1) as (server, results):
        actors = server.local_actors
        assert actors is not None
        wait_for(lambda: server.control.actors_online == 1, "the actor")
        (pid,) = actors.pids
        server.request_stop()
        kill(pid)
    assert len(results) == 1
    assert actors.restarts == 0
