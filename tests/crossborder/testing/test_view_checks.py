"""The check passes the views that come with crossborder, and says what is wrong with one broken in one way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.data import Array
from crossborder.testing import check_view
from examples.own_parts import Corridor
from examples.own_view import WithReturn
from learner.replay.view import Plan, Rows, View
from learner.views.hindsight import Hindsight
from learner.views.items import SelfContained
from learner.views.rollouts import Rollouts
from learner.views.sequences import Sequences
from learner.views.transitions import Transitions
from tests.crossborder.testing.parts import Broken, broken, fails_saying
from tests.learner.replay.memories import SCHEMA as ITEMS
from tests.learner.views.lanes import SCHEMA, Lanes
from tests.learner.views.test_hindsight import GOALS, REWARD

GOOD: dict[str, Callable[..., View]] = {
    "one step": Transitions,
    "n steps": partial(Transitions, discount_factor=0.9, n=5),
    "stacks": partial(Transitions, stack=4, n=3),
    "sequences": partial(Sequences, length=8),
    "burn-in and period": partial(Sequences, stack=2, length=10, burn_in=4, period=3),
    "across episodes": partial(Sequences, stack=2, length=20, across=True),
    "rollouts": partial(Rollouts, stack=2, length=12),
}


@pytest.mark.parametrize("name", GOOD)
def test_the_views_that_come_with_crossborder_pass(name: str) -> None:
    check_view(GOOD[name], SCHEMA)


def test_hindsight_and_self_contained_items_pass() -> None:
    check_view(partial(Hindsight, compute_reward=REWARD), GOALS)
    check_view(SelfContained, ITEMS)


def test_the_view_of_the_example_passes_and_sums_up_what_followed(tmp_path: Path) -> None:
    check_view(partial(WithReturn, horizon=4), Corridor())
    lanes = Lanes(tmp_path)
    lanes.play(6)
    batch = lanes.draw(WithReturn(SCHEMA, 0.5, horizon=4), [0, 4])
    assert batch["return"].tolist() == [4.0, 32.0], "1 + 2/2 + 4/4 + 8/8 and 16 + 32/2"
    assert batch["next_obs/at"].tolist() == [1, 5]


def changed(**changes: Any) -> Any:
    """A ``plan`` with its result changed; a change is given the plan and the rows."""

    def plan(self: Transitions, rows: Rows, index: Array) -> Plan:
        found = Transitions.plan(self, rows, index)
        return replace(found, **{name: change(found, index) for name, change in changes.items()})

    return plan


def always(self: View, rows: Rows, index: Array) -> Array:
    return np.ones(len(index), np.bool_)


def until_others_come(self: View, rows: Rows, index: Array) -> Array:
    return Transitions.can_draw(self, rows, index) & (index > rows.end - 100)  # type: ignore[arg-type]


def also_of_the_next_episode(self: View, rows: Rows, index: Array) -> Plan:
    plan = Transitions.plan(self, rows, index)  # type: ignore[arg-type]
    far = rows.chain(index, 3)
    return replace(plan, takes={"far": ("obs/at", np.where(far < 0, index[:, None], far))})


BROKEN_VIEWS: dict[str, Broken] = {
    "no bools": ({"can_draw": lambda self, rows, index: index}, "return a bool for each"),
    "nothing": ({"can_draw": lambda self, rows, index: np.zeros(len(index), np.bool_)}, "found no row among"),
    "always": ({"can_draw": always}, "say a smaller reach"),
    "not for long": ({"can_draw": until_others_come}, "it must stay true"),
    "too short": ({"reach": property(lambda self: 0)}, "say a larger reach"),
    "no steps": ({"steps": property(lambda self: 0)}, "at least one step"),
    "empty": ({"plan": changed(takes=lambda plan, index: {})}, "takes no column"),
    "unknown column": ({"plan": changed(takes=lambda plan, index: {"obs": ("eyes", index)})}, "which is not stored"),
    "too few": ({"plan": changed(made=lambda plan, index: {"more": index[:1]})}, "made 'more' of 1 rows"),
    "made and taken": ({"plan": changed(made=lambda plan, index: {"action": index})}, "both in takes and in made"),
    "too high": ({"plan": changed(lowest=lambda plan, index: index + 1)}, "below lowest"),
    "beyond": ({"plan": changed(takes=lambda plan, index: {"a": ("action", index + 9999)})}, "names row"),
    "other lanes": ({"plan": changed(takes=lambda plan, index: {"a": ("action", index + 1)})}, "crosses the end"),
    "across": ({"plan": also_of_the_next_episode}, "crosses the end of an episode"),
    "another choice": (
        {"choose": lambda self, rows, tries, size: (tries[:size], self.plan(rows, tries[:size]))},
        "choose",
    ),
}


@pytest.mark.parametrize("name", BROKEN_VIEWS)
def test_a_view_that_is_broken_in_one_way_fails_and_is_told_why(name: str) -> None:
    changes, message = BROKEN_VIEWS[name]
    with fails_saying(message):
        check_view(broken(Transitions, changes), SCHEMA)


def test_an_instance_is_refused_since_the_learner_makes_the_view() -> None:
    with fails_saying("found an instance of Transitions"):
        check_view(Transitions(SCHEMA), SCHEMA)  # type: ignore[arg-type]
