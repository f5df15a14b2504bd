"""A queue and a replay ratio: each step is drawn once, and neither side waits for the other without end."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from typing import Any

from learner.loop.server import train_async
from tests.conftest import PATIENCE, Command, MakeConfig, wait_for
from tests.e2e.test_counting import train_in_thread

BATCH = 100
IN_STEP: dict[str, Any] = {
    "env": {"target": "tests.parts:PacedEnv", "params": {"seconds": 0.0}},
    "agent": {"params": {"batch_size": BATCH}},
    "replay": {"target": "learner.replay.queue:QueueReplay", "samples_per_insert": 1.0},
    "push": {"n_buffer": 5, "window": 1},
}
"""Actors wait for the trainer, and actor 1 is slow if ``overrides`` say so."""


def test_a_batch_of_more_steps_than_the_ratio_lets_wait_is_made_nevertheless(make_config: MakeConfig) -> None:
    """A batch takes 200 steps, but the ratio stops the actors as soon as 5 steps have not been drawn."""
    config = make_config(
        replay={"target": "learner.replay.queue:QueueReplay", "samples_per_insert": 1.0, "error_buffer": 5.0},
        trainer={"max_opts": 10, "warmup_period": 1, "starvation_seconds": PATIENCE},
        agent={"params": {"batch_size": 200}},
        push={"window": 1},
    )
    result = train_async(config, local_actors=2)
    assert result.opt_steps == 10
    assert result.samples_total >= 10 * 200, "each step is drawn once"


def test_actors_of_different_speeds_give_equal_shares_of_each_batch(make_config: MakeConfig) -> None:
    trainer = {"max_opts": 10**9, "warmup_period": 1, "starvation_seconds": PATIENCE}
    config = make_config(**IN_STEP, trainer=trainer, overrides={1: {"env": {"seconds": 0.003}}})
    with train_in_thread(config, local_actors=2) as (server, _):
        items, learner = server.actor_table["items"], server.learner

        def give_equally() -> bool:
            """Look at twenty batches; an actor that was away for a moment on a busy host makes them unequal."""
            began, taken = items[:2].copy(), learner.opt_steps
            wait_for(lambda: learner.opt_steps >= taken + 20, "twenty batches are drawn")
            fast, slow = map(int, items[:2] - began)
            return abs(fast - slow) < 3 * BATCH

        wait_for(items[:2].all, "both give")
        wait_for(give_equally, "the fast actor waits for the slow one")


def test_an_actor_that_is_killed_before_it_has_given_its_share_blocks_nobody(
    make_config: MakeConfig, start: Callable[..., Command]
) -> None:
    trainer = {"max_opts": 10**9, "warmup_period": 1, "starvation_seconds": PATIENCE}
    config = make_config(**IN_STEP, trainer=trainer, overrides={1: {"env": {"seconds": 0.1}}})
    with train_in_thread(config, local_actors=1) as (server, _):
        table = server.actor_table
        slow = start("actor-worker", "--learner", server.ingest.address, "--id", "1")
        wait_for(lambda: max(table["items"][table["actor_id"] == 1], default=0) > 0, "the slow actor gives")
        slow.signal(signal.SIGKILL)
        taken = server.learner.opt_steps
        wait_for(lambda: server.learner.opt_steps > taken + 5, "the other one goes on alone")


def test_a_run_that_goes_back_to_an_earlier_checkpoint_learns_from_the_steps_after_it_and_not_from_old_ones_for_ever(
    make_config: MakeConfig,
) -> None:
    """If they counted as drawn, they would stay ahead of all later steps."""
    trainer = {"warmup_period": 1, "starvation_seconds": PATIENCE, "checkpoint_seconds": None}
    config = make_config(**IN_STEP, trainer={**trainer, "max_opts": 40})
    run = train_async(config, local_actors=1)
    shutil.rmtree(run.run_dir / "checkpoints" / "40")  # As if it had been killed before it was written.
    result = train_async(make_config(**IN_STEP, trainer={**trainer, "max_opts": 60}), local_actors=1, resume=True)
    assert result.opt_steps == 60
    assert 60 * BATCH <= result.samples_total < 80 * BATCH, "each step is drawn once"
