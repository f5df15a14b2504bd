"""Played episodes as rows in memory, as a replay would hold and draw them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from common.data import Items, Schema
from common.lanes.building import spec_of
from common.parts import row_schema
from crossborder.testing.play import play
from crossborder.testing.row_memory import RowMemory, make_view, rows_of, transitions, transitions_of
from examples.own_parts import Corridor
from learner.views.transitions import Transitions

SCHEMA: Schema = row_schema(spec_of(Corridor(length=2)))


def corridor(steps: int) -> Items:
    """Episodes of two steps to the right."""
    return rows_of(SCHEMA, play(Corridor(length=2), steps, policy=lambda _: 1))


def memory(steps: int) -> RowMemory:
    rows = corridor(steps) if steps else SCHEMA.empty(0)
    return RowMemory(SCHEMA, rows, Transitions(SCHEMA))


def test_an_episode_that_ended_has_a_final_row_and_an_open_one_has_none() -> None:
    rows = corridor(5)
    assert SCHEMA.count(rows) == 7
    assert rows["obs"][:, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert rows["first"].tolist() == [True, False, False, True, False, False, True]
    assert rows["final"].tolist() == [False, False, True, False, False, True, False]
    assert rows["terminated"].tolist() == [False, True, False, False, True, False, False]


def test_transitions_lead_from_each_step_to_the_observation_after_it() -> None:
    found = transitions_of(SCHEMA, corridor(4))
    assert found["obs"][:, 0].tolist() == [0, 1, 0, 1]
    assert found["next_obs"][:, 0].tolist() == [1, 2, 1, 2]
    assert not {"first", "final", "lane"} & found.keys()


def test_transitions_are_played_in_one_call() -> None:
    found = transitions(Corridor(length=2), 4, policy=lambda _: 1)
    np.testing.assert_equal(found, transitions_of(SCHEMA, corridor(4)))


def test_a_memory_draws_whole_transitions_and_never_final_rows() -> None:
    rows = memory(5)
    assert (len(rows), rows.inserted) == (4, 5), "nothing is known after the step of the open episode"
    batch = rows.batch(50)
    assert rows.sampled == 50
    np.testing.assert_array_equal(batch["next_obs"], batch["obs"] + 1)
    np.testing.assert_array_equal(batch["terminated"], batch["obs"][:, 0] == 1)


def test_nothing_can_be_drawn_from_an_empty_memory() -> None:
    with pytest.raises(IndexError, match="nothing to draw from"):
        memory(0).batch(1)


def test_a_view_is_made_by_its_own_parameters_before_those_of_the_learner() -> None:
    given: dict[str, Any] = {}

    def view(schema: Schema, stack: int, discount_factor: float) -> Transitions:
        given.update(stack=stack, discount_factor=discount_factor)
        return Transitions(schema)

    make_view(view, SCHEMA, discount_factor=0.5, make_env=lambda: None)
    assert given == {"stack": 1, "discount_factor": 0.5}
    make_view(partial(view, discount_factor=0.9), SCHEMA, discount_factor=0.5)
    assert given == {"stack": 1, "discount_factor": 0.9}
