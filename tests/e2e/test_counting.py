"""Nothing is lost, duplicated, reordered within an actor, or mixed between actors: counted, through real processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.config.run_config import RunConfig
from learner.loop.server import AsyncResult, LearnerServer, train_async
from learner.shared.actor_table import ActorState
from tests.conftest import PATIENCE, MakeConfig, children_of, kill, wait_for
from tests.stored import assert_stored

CAPACITY = 1_000_000


@contextmanager
def train_in_thread(config: RunConfig, local_actors: int) -> Iterator[tuple[LearnerServer, list[AsyncResult]]]:
    """A run that goes on while the test interferes; its result is there when the context has ended."""
    results: list[AsyncResult] = []
    with LearnerServer(config, local_actors) as server:
        training = threading.Thread(target=lambda: results.append(server.train()))
        training.start()
        try:
            yield server, results
        finally:
            server.learner.request_stop()
            training.join(PATIENCE)


def steps_of(result: AsyncResult) -> dict[int, int]:
    return {stat.actor_id: stat.env_steps for stat in result.actors}


def test_it_stays_complete_when_ingest_is_killed_again_and_again(make_config: MakeConfig) -> None:
    config = make_config(
        replay={"capacity": CAPACITY, "samples_per_insert": 1.6},
        trainer={"max_opts": 1_000_000},
        push={"n_buffer": 10, "spool_bytes": 100_000},
        envs_per_actor=3,
    )
    with train_in_thread(config, local_actors=2) as (server, results):
        for kills in range(1, 4):
            before = server.buffer.inserted
            wait_for(lambda before=before: server.buffer.inserted > before + 500, "rows flow")  # type: ignore[misc]
            kill(server.ingest.pid)
            wait_for(lambda kills=kills: server.ingest.restarts == kills, "the restart")  # type: ignore[misc]
        known = server.actor_table["pid"] > 0
        goal = server.actor_table["items"][known] + 500
        wait_for(lambda: bool((server.actor_table["items"][known] > goal).all()), "rows of both flow again")
        server.learner.request_stop()
    (result,) = results
    rounds = {actor: steps // 3 for actor, steps in steps_of(result).items()}
    assert 3 * sum(rounds.values()) == result.samples_total
    assert_stored(result.run_dir, {3 * actor + j: rounds[actor] for actor in (0, 1) for j in range(3)})


def test_an_actor_that_crashes_shows_where_is_replaced_and_costs_the_others_nothing(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    config = make_config(
        replay={"capacity": CAPACITY, "samples_per_insert": 1.6},
        trainer={"max_opts": 1_000_000},
        env={"target": "tests.parts:DyingEnv", "params": {"marker": str(tmp_path / "died")}},
    )
    with train_in_thread(config, local_actors=2) as (server, results):
        table = server.actor_table
        wait_for(lambda: (table["env_steps"][table["state"] == ActorState.ONLINE] > 400).sum() == 2, "both go on")
        server.learner.request_stop()
    (result,) = results
    assert (tmp_path / "died").exists()
    assert "Fatal Python error: Segmentation fault" in caplog.messages
    assert "in fail" in caplog.text
    known = table[table["pid"] > 0]
    assert len(known) == 3, "two, and the one in the dead one's place"
    survivors = known[known["state"] == ActorState.LEFT]
    assert len(survivors) == 2
    assert (survivors["items"] == survivors["env_steps"]).all()
    # Each process had a seed of its own; of the one that was killed all that it handed over is there, without a hole.
    assert_stored(result.run_dir, {tag: int(row["items"]) for tag, row in enumerate(known)})


@pytest.mark.own_children
def test_no_process_is_left_when_training_has_ended(make_config: MakeConfig) -> None:
    train_async(make_config(trainer={"max_opts": 50}), local_actors=1)
    assert children_of(os.getpid()) == []
