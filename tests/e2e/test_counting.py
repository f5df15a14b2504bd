"""Nothing is lost, duplicated, reordered within an actor, or mixed between actors: counted, through real processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from common.config.run_config import RunConfig
from common.data import Array
from learner.loop.server import AsyncResult, LearnerServer, train_async
from learner.shared.actor_table import ActorState
from tests.conftest import PATIENCE, MakeConfig, children_of, kill, wait_for
from tests.parts import CountingEnv
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


def test_every_row_of_every_actor_arrives_once_in_order_and_linked(make_config: MakeConfig) -> None:
    config = make_config(replay={"capacity": CAPACITY, "samples_per_insert": 1.6}, trainer={"max_opts": 1_000_000})
    with train_in_thread(config, local_actors=3) as (server, results):
        wait_for(lambda: (server.actor_table["env_steps"] > 1000).sum() == 3, "every actor takes part")
        server.learner.request_stop()
    (result,) = results
    steps = steps_of(result)
    assert sorted(steps) == [0, 1, 2], "nobody died, so seeds, and with them the environments' tags, are the actor ids"
    assert sum(steps.values()) == result.samples_total
    assert_stored(result.run_dir, steps)


class SucceedingEnv(CountingEnv):
    """Its episodes succeed where they terminate, and say so."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"is_success": terminated}


def test_what_actors_get_in_training_is_recorded(make_config: MakeConfig) -> None:
    env = {"target": "tests.e2e.test_counting:SucceedingEnv"}
    trainer = {"max_opts": 1_000_000, "record_interval": 5}
    config = make_config(env=env, replay={"samples_per_insert": 1.6}, trainer=trainer)
    with train_in_thread(config, local_actors=1) as (server, _):
        keys = {"train_return", "train_length", "train_success"}
        wait_for(lambda: keys <= server.learner.last_record.keys(), "a record has what the episodes came to")
        found = dict(server.learner.last_record)
        server.learner.request_stop()
    assert found["train_length"] == pytest.approx(7, abs=1)
    assert found["train_return"] > 0


def test_the_environments_of_one_actor_are_kept_apart(make_config: MakeConfig) -> None:
    config = make_config(
        replay={"capacity": CAPACITY, "samples_per_insert": 1.6}, trainer={"max_opts": 1_000_000}, envs_per_actor=3
    )
    with train_in_thread(config, local_actors=2) as (server, results):
        wait_for(lambda: (server.actor_table["env_steps"] > 1000).sum() == 2, "every actor takes part")
        server.learner.request_stop()
    (result,) = results
    rounds = {actor: steps // 3 for actor, steps in steps_of(result).items()}
    assert_stored(result.run_dir, {3 * actor + j: rounds[actor] for actor in (0, 1) for j in range(3)})
    assert 3 * sum(rounds.values()) == result.samples_total


def test_it_stays_complete_when_ingest_is_killed_again_and_again(make_config: MakeConfig) -> None:
    config = make_config(
        replay={"capacity": CAPACITY, "samples_per_insert": 1.6},
        trainer={"max_opts": 1_000_000},
        push={"n_buffer": 10, "spool_bytes": 100_000},
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
    steps = steps_of(result)
    assert sum(steps.values()) == result.samples_total
    assert_stored(result.run_dir, steps)


def test_a_killed_actor_is_replaced_and_costs_the_others_nothing(make_config: MakeConfig, tmp_path: Path) -> None:
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
