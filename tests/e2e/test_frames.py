"""Stacked pictures through the whole system, each frame sent and kept once: no stack is torn, lost or mixed up."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from common.data import Items
from common.envs import spec_of
from common.processors import OneStep
from learner.loop.in_turns import train_in_turns
from learner.replay.memory import ReplayMemory
from learner.replay.reader import ReplayReader
from tests.conftest import MakeConfig, kill, wait_for
from tests.e2e.test_counting import steps_of, train_in_thread
from tests.frame_parts import check_filmed, stacked_counting_env
from tests.parts import assert_complete

PARTS = {
    "env": {"target": "tests.frame_parts:stacked_counting_env"},
    "agent": {"target": "tests.frame_parts:FilmCritic"},
}
CAPACITY = 20_000


def stored_items(run_dir: Path) -> tuple[Items, int]:
    """Everything in the replay of a run that has ended, checked and as numbers, and how many frames it took."""
    schema = OneStep().schema(spec_of(stacked_counting_env()))
    frames = int(1.25 * CAPACITY)
    memory = ReplayMemory(run_dir / "shared" / "replay", schema, CAPACITY, create=False, frame_capacity=frames)
    assert memory.first() == 0, "nothing may have been overwritten"
    _, items = ReplayReader(memory).take(lambda size: {"index": np.arange(size)}, memory.committed)
    return check_filmed(items), memory.header.frames_end


def test_every_stack_of_every_actor_arrives_also_when_ingest_is_killed(make_config: MakeConfig) -> None:
    config = make_config(
        **PARTS,
        replay={"capacity": CAPACITY, "samples_per_insert": 4},
        trainer={"max_opts": 1_000_000},
        push={"n_buffer": 10, "spool_bytes": 200_000},
    )
    with train_in_thread(config, local_actors=2) as (server, results):
        table = server.actor_table
        wait_for(lambda: (table["items"] > 100).sum() == 2, "items of both flow")
        kill(server.ingest.pid)
        goal = table["items"][:2] + 300
        wait_for(lambda: bool((table["items"][:2] > goal).all()), "items of both flow again")
        server.learner.request_stop()
    (result,) = results
    items, n_frames = stored_items(result.run_dir)
    assert_complete(items, steps_of(result))
    assert n_frames < 1.6 * result.samples_total, "10 steps in episodes of 7 show 11 or 12 pictures, and 3 before them"
    assert server.control.payload_bytes < 1.7 * 1024 * result.samples_total


def test_every_stack_that_is_drawn_is_whole_when_frames_run_out_again_and_again(make_config: MakeConfig) -> None:
    config = make_config(
        **PARTS,
        replay={"capacity": 200, "samples_per_insert": 4},
        trainer={"max_opts": 1_000_000, "warmup_period": 50},
    )
    with train_in_thread(config, local_actors=2) as (server, results):
        wait_for(lambda: server.buffer.inserted > 2000, "many rounds")
        assert len(server.buffer) < 200, "there is room for 250 frames, and an item takes more than 1.25"
        server.learner.request_stop()
    (result,) = results
    assert result.samples_total == sum(steps_of(result).values())


def test_in_turns_too_each_picture_is_kept_once(make_config: MakeConfig) -> None:
    agent = {**PARTS["agent"], "params": {"in_turns": True}}
    config = make_config(env=PARTS["env"], agent=agent, replay={"capacity": CAPACITY}, trainer={"max_opts": 350})
    items, n_frames = stored_items(train_in_turns(config).run_dir)
    assert_complete(items, {0: 350})
    shown = np.concatenate([items["obs"], items["next_obs"]])
    assert n_frames == len(np.unique(shown, axis=0)), "no picture is kept twice"
