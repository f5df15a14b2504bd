"""Plain environments, which are reset one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.data import Array
from common.errors import PluginError
from common.lanes.building import lanes_of
from common.lanes.plain_lanes import PlainLanes
from tests.common.lanes.test_lanes import answers, array, counting
from tests.parts import CountingEnv, Goals


def test_a_plain_environment_is_not_reset_before_the_next_observation_is_wanted() -> None:
    class Watching(CountingEnv):
        resets = 0

        def reset(self, **options: Any) -> tuple[Array, dict[str, Any]]:
            self.resets += 1
            return super().reset(**options)

    env = Watching()
    lanes = lanes_of(env)
    lanes.reset(0)
    for _ in range(6):
        lanes.step(answers(lanes.observe()))
    assert env.resets == 1
    lanes.reset(1)
    lanes.observe()
    assert env.resets == 2


def test_one_lane_can_be_given_a_seed_for_its_next_episode() -> None:
    lanes = counting(2, None)
    assert isinstance(lanes, PlainLanes)
    lanes.reset(10)
    lanes.step(answers(lanes.observe()))
    lanes.seed_next(1, 50)
    assert array(lanes.observe()).tolist() == [[10, 2, 0], [50, 1, 0]]
    assert lanes.begins is not None
    assert lanes.begins.tolist() == [False, True]


@pytest.mark.parametrize(
    "found",
    [np.zeros(2, np.float32), np.zeros((1, 3), np.float32), np.float32(0), {"x": np.zeros(3)}, None],
    ids=["shorter", "more axes", "a number", "a dict", "nothing"],
)
def test_an_observation_that_does_not_fit_is_refused(found: Any) -> None:
    class Odd(CountingEnv):
        def _obs(self) -> Any:
            return found

    with pytest.raises(PluginError, match="env: expected an observation of Box"):
        lanes_of(Odd()).observe()


def test_an_observation_that_lacks_a_part_is_refused() -> None:
    class Lacking(Goals):
        def _obs(self) -> dict[str, Array]:
            return {"observation": np.zeros(1)}

    with pytest.raises(PluginError, match="env: expected an observation of Dict"):
        lanes_of(Lacking()).observe()
