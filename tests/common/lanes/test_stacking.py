from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation

from common.data import Array, Leaves
from common.lanes.building import lanes_of, spec_of, stacked_spec
from common.lanes.stacking import Stacker
from common.leaves import empty_leaves, pick_leaves
from tests.frame_parts import filmed_counting_env
from tests.parts import CountingEnv, Goals


def array(leaves: Leaves) -> Array:
    assert isinstance(leaves, np.ndarray)
    return leaves


@pytest.mark.parametrize("k", [2, 3, 4, 8])
@pytest.mark.parametrize("make", [CountingEnv, filmed_counting_env], ids=["vectors", "pictures"])
def test_stacks_are_those_of_gymnasium(make: Any, k: int) -> None:
    """Also at the end of an episode, where ``peek`` gives the stack that ends with the last observation."""
    n = 3
    lanes, stacker = lanes_of([make() for _ in range(n)]), Stacker(spec_of(make()), n, k)
    theirs = [FrameStackObservation(make(), k) for _ in range(n)]
    expected = [env.reset(seed=5 + j)[0] for j, env in enumerate(theirs)]
    lanes.reset(5)
    step, episode = np.ones(n, int), np.zeros(n, int)
    for _ in range(60):
        stacks = array(stacker.add(lanes.observe(), lanes.begins))
        np.testing.assert_array_equal(stacks, expected)
        actions = (step + episode) % 3
        outcome = lanes.step(actions)
        moved = [env.step(action) for env, action in zip(theirs, actions.tolist(), strict=True)]
        expected = [obs for obs, *_ in moved]
        step += 1
        if outcome.ended is not None and outcome.final_obs is not None:
            last = array(outcome.obs).copy()
            last[outcome.ended] = outcome.final_obs
            np.testing.assert_array_equal(array(stacker.peek(last)), expected)
            for j in outcome.ended:
                expected[j], _ = theirs[j].reset()
                step[j], episode[j] = step[j] + 1, episode[j] + 1
    assert episode.min() > 5


def test_stacks_stay_as_they_are_while_the_next_ones_are_made() -> None:
    """An agent may still read them, as an asynchronous copy does."""
    stacker = Stacker(spec_of(CountingEnv()), 1, 3)
    begins: Array | None = np.ones(1, bool)
    before: list[tuple[Array, Array]] = []
    for number in range(20):
        stacks = array(stacker.add(np.full((1, 3), number, np.float32), begins))
        before.append((stacks, stacks.copy()))
        begins = None
        if number:
            np.testing.assert_array_equal(*before[-2])


def test_only_lanes_that_begin_are_filled_with_their_first_frame() -> None:
    stacker = Stacker(spec_of(CountingEnv()), 2, 2)
    stacker.add(np.full((2, 3), 1, np.float32), np.ones(2, bool))
    stacks = array(stacker.add(np.full((2, 3), 2, np.float32), np.array([False, True])))
    assert stacks[:, :, 0].tolist() == [[1, 2], [2, 2]]


def test_each_leaf_of_a_structured_observation_is_stacked() -> None:
    spec = spec_of(Goals())
    stacker = Stacker(spec, 1, 2)
    zeros = {name: np.zeros((1, 1), np.float32) for name in ("observation", "achieved_goal", "desired_goal")}
    stacker.add(zeros, np.ones(1, bool))
    stacks = stacker.add({**zeros, "observation": np.ones((1, 1), np.float32)}, None)
    assert isinstance(stacks, dict)
    assert {name: leaf.reshape(-1).tolist() for name, leaf in stacks.items()} == {
        "observation": [0, 1],
        "achieved_goal": [0, 0],
        "desired_goal": [0, 0],
    }
    space = stacked_spec(spec, 2).observation_space
    assert isinstance(space, gymnasium.spaces.Dict)
    assert all(space[name].shape == leaf.shape[1:] for name, leaf in stacks.items())


def test_with_one_frame_observations_stay_as_they_are() -> None:
    stacker, obs = Stacker(spec_of(CountingEnv()), 2, 1), np.zeros((2, 3), np.float32)
    assert stacker.add(obs, np.ones(2, bool)) is obs
    assert array(stacker.peek(obs)).shape == (2, 3)


def test_stacks_can_be_restored() -> None:
    one, other = (Stacker(spec_of(CountingEnv()), 2, 3) for _ in range(2))
    for number in range(5):
        one.add(np.full((2, 3), number, np.float32), np.full(2, number == 0))
    other.restore({path: stacks.copy() for path, stacks in one.stacks().items()})
    following = np.full((2, 3), 9, np.float32)
    np.testing.assert_array_equal(array(other.add(following, None)), array(one.add(following, None)))


@pytest.mark.parametrize("space", ["leaf", "dict"])
def test_a_lane_has_the_same_stacks_alone_and_beside_others_that_come_begin_and_pause(space: str) -> None:
    spec = spec_of(CountingEnv() if space == "leaf" else Goals())
    beside, alone = Stacker(spec, 1, 3), Stacker(spec, 1, 3)
    for step, lanes in enumerate((np.array([5]), np.array([0, 5]), np.array([1, 5, 0]), np.array([20, 5]))):
        obs = empty_leaves(spec.observation_space, len(lanes))
        for leaf in obs.values() if isinstance(obs, dict) else [obs]:
            leaf[:] = (10 * step + lanes).reshape(-1, *(1 for _ in leaf.shape[1:]))
        begins = (lanes != 5) | (step == 0)
        found = pick_leaves(beside.add(obs, begins, lanes), lanes == 5)
        expected = alone.add(pick_leaves(obs, lanes == 5), np.array([step == 0]))
        if step % 2:
            beside.add(pick_leaves(obs, lanes != 5), None, lanes[lanes != 5])
        paths = found if isinstance(found, dict) else {"": found}
        for path, leaf in paths.items():
            np.testing.assert_array_equal(leaf, expected[path] if isinstance(expected, dict) else expected)
