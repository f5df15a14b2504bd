"""A queue and a replay ratio: each step is drawn once, and neither side waits for the other without end."""

from __future__ import annotations

from learner.loop.server import train_async
from tests.conftest import PATIENCE, MakeConfig


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
