"""Stacked pictures through the whole system, each frame sent and kept once: no stack is torn, lost or mixed up."""

from __future__ import annotations

from typing import Any

import numpy as np

from learner.loop.in_turns import train_in_turns
from tests.conftest import MakeConfig, kill, wait_for
from tests.e2e.test_counting import steps_of, train_in_thread
from tests.frame_parts import developed
from tests.parts import assert_complete, assert_linked
from tests.stored import stored_links, stored_rows

PARTS: dict[str, Any] = {
    "env": {"target": "tests.frame_parts:filmed_counting_env", "frame_stack": 4},
    "agent": {"target": "tests.frame_parts:FilmCritic"},
}
CAPACITY = 100_000


def assert_filmed(run_dir: Any, steps_by_tag: dict[int, int]) -> None:
    """Each environment's pictures are there once, in order and linked."""
    rows = stored_rows(run_dir)
    seen = {**rows, "obs": developed(rows["obs"][:, None])[:, 0]}
    assert_complete(seen, steps_by_tag)
    assert_linked(seen, stored_links(run_dir))


def test_every_picture_of_every_actor_arrives_also_when_ingest_is_killed(make_config: MakeConfig) -> None:
    config = make_config(
        **PARTS,
        replay={"capacity": CAPACITY, "samples_per_insert": 4},
        trainer={"max_opts": 1_000_000},
        push={"n_buffer": 10, "spool_bytes": 200_000},
    )
    with train_in_thread(config, local_actors=2) as (server, results):
        table = server.actor_table
        wait_for(lambda: (table["items"] > 100).sum() == 2, "rows of both flow")
        kill(server.ingest.pid)
        goal = table["items"][:2] + 300
        wait_for(lambda: bool((table["items"][:2] > goal).all()), "rows of both flow again")
        server.learner.request_stop()
    (result,) = results
    assert_filmed(result.run_dir, steps_of(result))
    assert server.control.payload_bytes < 1.3 * 1024 * result.samples_total, "a picture for each step travels"


def test_every_stack_that_is_drawn_is_whole_when_rows_are_overwritten_again_and_again(make_config: MakeConfig) -> None:
    config = make_config(
        **PARTS,
        replay={"capacity": 200, "samples_per_insert": 4},
        trainer={"max_opts": 1_000_000, "warmup_period": 50},
    )
    with train_in_thread(config, local_actors=2) as (server, results):
        wait_for(lambda: server.buffer.inserted > 2000, "many rounds")
        server.learner.request_stop()
    (result,) = results
    assert result.samples_total == sum(steps_of(result).values())


def test_in_turns_too_each_picture_is_kept_once(make_config: MakeConfig) -> None:
    agent = {**PARTS["agent"], "params": {"in_turns": True}}
    config = make_config(env=PARTS["env"], agent=agent, replay={"capacity": CAPACITY}, trainer={"max_opts": 350})
    run_dir = train_in_turns(config).run_dir
    assert_filmed(run_dir, {0: 351})
    pictures = stored_rows(run_dir)["obs"]
    assert len(pictures) == len(np.unique(pictures, axis=0)), "no picture is kept twice"
