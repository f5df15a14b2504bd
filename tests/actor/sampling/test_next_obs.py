from __future__ import annotations

import numpy as np

from actor.sampling.next_obs import next_of
from common.data import Array, Leaves
from common.interfaces import EnvSpec
from common.lanes.lanes import Round
from common.lanes.stacking import Stacker
from tests.parts import CountingEnv, Goals

NONE = np.zeros(3, bool)
SPEC = EnvSpec(CountingEnv.observation_space, CountingEnv.action_space)


def rows(*firsts: int) -> Array:
    """Observations that begin with these numbers."""
    return np.array([[first, 0, 0] for first in firsts], np.float32)


def outcome(obs: Leaves, final_obs: Leaves | None = None) -> Round:
    """A round after which the episode of lane 1 has ended, if it has a last observation."""
    ended = None if final_obs is None else np.array([1])
    return Round(np.zeros(3), NONE, NONE, obs, ended=ended, final_obs=final_obs)


def test_the_next_observation_of_an_ended_episode_is_its_last_one() -> None:
    seen = rows(1, 2, 3)
    found = next_of(outcome(seen, rows(9)), None)
    np.testing.assert_array_equal(found, rows(1, 9, 3))
    np.testing.assert_array_equal(seen, rows(1, 2, 3), err_msg="the lanes go on with their own")


def test_each_leaf_of_a_structured_observation_is_the_last_one() -> None:
    obs = {path: np.zeros((3, 1), np.float32) for path in Goals.observation_space}
    last = {path: np.full((1, 1), number, np.float32) for number, path in enumerate(obs, start=1)}
    found = next_of(outcome(obs, last), None)
    assert isinstance(found, dict)
    assert [found[path][:, 0].tolist() for path in obs] == [[0, number, 0] for number in range(1, len(obs) + 1)]


def test_stacks_end_with_the_last_observation_and_nothing_is_added() -> None:
    stacker = Stacker(SPEC, 3, 2)
    stacker.add(rows(1, 2, 3), np.ones(3, bool))
    for _ in range(2):
        found = next_of(outcome(rows(4, 5, 6), rows(9)), stacker)
        assert isinstance(found, np.ndarray)
        assert found[:, :, 0].tolist() == [[1, 4], [2, 9], [3, 6]]
