"""Lanes of plain and of vector environments, as an evaluator or a user's own loop would step them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from common.data import Array, Leaves
from common.envs import lanes_of
from common.errors import PluginError
from common.lanes import AnyEnv, Busy, Lanes, Round
from common.plain_lanes import PlainLanes
from tests.actor.acting import together
from tests.parts import CountingEnv, Goals

MODES = pytest.mark.parametrize("mode", [None, *AutoresetMode])


def counting(n: int, mode: AutoresetMode | None) -> Lanes:
    return lanes_of(together([CountingEnv() for _ in range(n)], mode))


def answers(obs: Leaves) -> Array:
    assert isinstance(obs, np.ndarray)
    actions: Array = ((obs[:, 1] + obs[:, 2]) % 3).astype(np.int64)
    return actions


def array(leaves: Leaves | None) -> Array:
    assert isinstance(leaves, np.ndarray)
    return leaves


@MODES
def test_a_round_says_what_came_of_each_lane(mode: AutoresetMode | None) -> None:
    lanes = counting(2, mode)
    lanes.reset(10)
    outcomes: list[Round] = []
    for number in range(6):
        obs = array(lanes.observe())
        assert (lanes.begins is None) == (number > 0)
        assert obs.tolist() == [[10, number + 1, 0], [11, number + 1, 0]]
        outcomes.append(lanes.step(answers(obs)))
        assert outcomes[-1].reward.tolist() == [number + 1, number + 1]
    last = outcomes[-1]
    assert last.terminated.tolist() == [True, True]
    assert last.truncated.tolist() == [False, False]
    assert last.ended is not None
    assert last.ended.tolist() == [0, 1]
    assert array(last.final_obs).tolist() == [[10, 7, 0], [11, 7, 0]]
    assert (list(last.returns), list(last.lengths), list(last.success)) == ([21.0, 21.0], [6, 6], [None, None])


@MODES
def test_lanes_go_on_with_the_next_episode(mode: AutoresetMode | None) -> None:
    lanes = counting(2, mode)
    lanes.reset(10)
    begun = []
    for number in range(9):
        obs = lanes.observe()
        if lanes.begins is not None:
            assert lanes.begins.tolist() == [True, True]
            begun.append((number, array(obs)[0].tolist()))
        outcome = lanes.step(answers(obs))
        assert (outcome.taken is not None) == (mode is AutoresetMode.NEXT_STEP and number == 6)
    later = 7 if mode is AutoresetMode.NEXT_STEP else 6
    assert begun == [(0, [10, 1, 0]), (later, [10, 8, 1])]


@MODES
def test_all_lanes_can_be_reset_at_any_time(mode: AutoresetMode | None) -> None:
    lanes = counting(2, mode)
    for seed, rounds in ((1, 3), (5, 6), (9, 1)):
        lanes.reset(seed)
        for _ in range(rounds):
            obs = lanes.observe()
            lanes.step(answers(obs))
    lanes.reset(20)
    assert array(lanes.observe()).tolist() == [[20, 1, 0], [21, 1, 0]]
    assert lanes.begins is not None
    assert lanes.begins.all()


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


# Vector environments of other makes.


class Fixed(VectorEnv[Any, Any, Any]):
    """Two lanes that end at each third step; what they return is given."""

    num_envs = 2
    single_observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, mode: AutoresetMode | None, infos: Callable[[bool], dict[str, Any]], **changes: Any) -> None:
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self._infos, self._changes, self._steps = infos, changes, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._steps += 1
        done = np.array([False, self._steps % 3 == 0])
        obs = np.full((2, 1), self._steps, np.float32)
        given = {"obs": obs, "reward": np.ones(2), "terminated": done, "truncated": ~done & False, **self._changes}
        return (*given.values(), self._infos(bool(done[1])))


def third(env: AnyEnv) -> Round:
    """The third round."""
    lanes = lanes_of(env)
    for _ in range(3):
        obs = lanes.observe()
        outcome = lanes.step(np.zeros(2, np.int64))
        del obs
    return outcome


FINAL: dict[str, Any] = {
    "gymnasium": lambda done: {"final_obs": np.array([None, np.full(1, 7.0)], dtype=object)} if done else {},
    "batched": lambda done: {"final_obs": np.full((2, 1), 7.0)},
    "an older name": lambda done: {"final_observation": np.array([None, np.full(1, 7.0)], dtype=object)},
}


@pytest.mark.parametrize("infos", FINAL.values(), ids=FINAL)
def test_last_observations_are_found_in_any_form(infos: Callable[[bool], dict[str, Any]]) -> None:
    outcome = third(Fixed(AutoresetMode.SAME_STEP, infos))
    assert array(outcome.final_obs).tolist() == [[7.0]]


def test_an_environment_that_hides_the_last_observation_is_refused() -> None:
    with pytest.raises(PluginError, match=r"infos\['final_obs'\] is expected; it is missing"):
        third(Fixed(AutoresetMode.SAME_STEP, lambda done: {}))


@pytest.mark.parametrize(
    "final",
    [
        {"is_success": np.array([False, True]), "_is_success": np.array([False, True])},
        np.array([None, {"is_success": True}], dtype=object),
    ],
    ids=["columns", "one dict for each lane"],
)
def test_successes_are_found_in_any_form(final: Any) -> None:
    def infos(done: bool) -> dict[str, Any]:
        now = {"is_success": np.array([False, False])}
        return {**now, "final_obs": np.zeros((2, 1)), "final_info": final} if done else now

    assert third(Fixed(AutoresetMode.SAME_STEP, infos)).success == [True]


def test_without_a_mode_lanes_are_reset_at_the_next_step() -> None:
    outcome = third(Fixed(None, lambda done: {}))
    assert array(outcome.final_obs).tolist() == [[3.0]]


def test_tensors_are_taken_as_arrays() -> None:
    import torch

    changes = {"obs": torch.ones(2, 1), "reward": torch.ones(2), "terminated": torch.zeros(2, dtype=torch.bool)}
    outcome = third(Fixed(AutoresetMode.NEXT_STEP, lambda done: {}, **changes))
    assert array(outcome.obs).tolist() == [[1.0], [1.0]]
    assert isinstance(outcome.reward, np.ndarray)


def test_observations_of_another_shape_are_refused() -> None:
    with pytest.raises(PluginError, match=r"expected observations of shape \[2, 1\], found \[2\]"):
        third(Fixed(None, lambda done: {}, obs=np.zeros(2, np.float32)))


def test_an_envpool_that_steps_some_of_its_lanes_is_refused() -> None:
    pool = Fixed(None, lambda done: {})
    pool.all_env_ids, pool.config = [0, 1], {"batch_size": 1}  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match="batch_size: expected 2, so that all lanes step, found 1"):
        lanes_of(pool)


def test_more_lanes_than_a_row_can_name_are_refused() -> None:
    env = Fixed(None, lambda done: {})
    env.num_envs = 65_537
    with pytest.raises(PluginError, match="expected 1 to 65536 lanes, found 65537"):
        lanes_of(env)


# Plain environments that do not keep to their spaces.


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


# Whoever watches over environments.


@MODES
def test_a_keeper_sees_when_an_environment_is_busy(mode: AutoresetMode | None) -> None:
    seen: list[float] = []

    class Watched(CountingEnv):
        def reset(self, **options: Any) -> tuple[Array, dict[str, Any]]:
            seen.append(keeper.busy.since)
            return super().reset(**options)

        def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
            seen.append(keeper.busy.since)
            return super().step(action)

    class Watching:
        busy = Busy()

        def replace(self, env: AnyEnv, error: Exception | SystemExit) -> AnyEnv:
            raise error

    keeper = Watching()
    lanes = lanes_of(Watched() if mode is None else SyncVectorEnv([Watched], autoreset_mode=mode))
    lanes.keep(keeper)
    for _ in range(8):
        lanes.step(answers(lanes.observe()))
        assert keeper.busy.since == math.inf
    assert len(seen) >= 8
    assert all(math.isfinite(since) for since in seen)
