from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from common.data import Column
from common.interfaces import EnvSpec, Step
from common.processors import OneStep

SPEC = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(3))
STEP = Step(
    np.array([0.25, 0.5], np.float32), np.int64(2), 1.5, np.array([0.75, 1.0], np.float32), True, truncated=False
)


def test_the_columns_are_those_of_a_transition() -> None:
    assert OneStep().schema(SPEC).columns == (
        Column("obs", "<f4", (2,)),
        Column("action", "<i8"),
        Column("reward", "<f4"),
        Column("next_obs", "<f4", (2,)),
        Column("terminated", "|b1"),
        Column("truncated", "|b1"),
    )


def test_one_step_becomes_one_item_that_fits_the_schema() -> None:
    items = OneStep().process(STEP)
    assert OneStep().schema(SPEC).count(items) == 1
    assert {name: column[0].tolist() for name, column in items.items()} == {
        "obs": [0.25, 0.5],
        "action": 2,
        "reward": 1.5,
        "next_obs": [0.75, 1.0],
        "terminated": True,
        "truncated": False,
    }


@pytest.mark.parametrize(("terminated", "truncated"), [(False, False), (True, False), (False, True), (True, True)])
def test_the_two_kinds_of_end_are_kept_apart(terminated: bool, truncated: bool) -> None:
    items = OneStep().process(Step(STEP.obs, STEP.action, 0.0, STEP.next_obs, terminated, truncated))
    assert (items["terminated"][0], items["truncated"][0]) == (terminated, truncated)


def test_actions_with_a_shape_keep_it() -> None:
    space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    step = Step(STEP.obs, np.array([1, 2, 3], np.float32), 0.0, STEP.next_obs, terminated=False, truncated=False)
    items = OneStep().process(step)
    assert OneStep().schema(EnvSpec(SPEC.observation_space, space)).count(items) == 1
    assert items["action"].tolist() == [[1, 2, 3]]
