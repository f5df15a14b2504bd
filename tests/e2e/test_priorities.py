"""Prioritised replay with first priorities from the actors (Ape-X), through a whole run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.errors import PluginError
from learner.loop.in_turns import train_in_turns
from learner.loop.run import Result
from learner.loop.server import LearnerServer, train_async
from learner.replay.prioritized import PrioritizedReplay
from tests.conftest import MakeConfig
from tests.e2e.test_counting import steps_of
from tests.stored import assert_stored, stored_rows

APE_X: dict[str, Any] = {
    "agent": {"target": "tests.parts:RatingAgent"},
    "push": {"initial_priorities": True},
    "replay": {"prioritized": {}},
    "trainer": {"max_opts": 300},
}


def assert_rated(result: Result) -> None:
    rows = stored_rows(result.run_dir)
    steps = ~rows["final"]
    assert steps.sum() == result.samples_total
    np.testing.assert_array_equal(rows["priority"][steps], rows["reward"][steps])


def test_actors_send_a_priority_with_every_step_and_the_learner_draws_by_it(make_config: MakeConfig) -> None:
    result = train_async(make_config(**APE_X), local_actors=2)
    assert result.opt_steps == 300
    assert_rated(result)
    assert_stored(result.run_dir, steps_of(result))


def test_in_turns_steps_get_theirs_as_well(make_config: MakeConfig) -> None:
    agent = {"target": "tests.parts:RatingAgent", "params": {"in_turns": True}}
    result = train_in_turns(make_config(**APE_X | {"agent": agent}))
    assert result.samples_total == 301, "a step can be drawn once the next one is there"
    assert_rated(result)


def test_an_agent_that_cannot_rate_steps_is_refused_before_anything_starts(make_config: MakeConfig) -> None:
    config = make_config(**APE_X | {"agent": {"target": "tests.parts:CheckingAgent"}})
    with pytest.raises(PluginError, match=r"push\.initial_priorities: tests\.parts:CheckingAgent has no td_error"):
        train_async(config)


def test_the_buffer_of_a_run_is_the_one_it_asks_for(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(replay={"prioritized": {"alpha": 0.5}})) as server:
        assert isinstance(server.buffer, PrioritizedReplay)
