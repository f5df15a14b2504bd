"""Vector environments of any make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from common.data import Array
from common.errors import PluginError
from common.lanes.building import lanes_of
from common.lanes.lanes import AnyEnv, Round
from common.plugins.part_config import EnvConfig
from tests.common.lanes.test_lanes import array


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


def third(env: AnyEnv, **config: Any) -> Round:
    """The third round."""
    lanes = lanes_of(env, EnvConfig(target="x:y", **config))
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
        [None, {"is_success": True}],
        ({}, {"is_success": True}),
    ],
    ids=["columns", "one dict for each lane", "a list of them", "a tuple of them"],
)
def test_successes_are_found_in_any_form(final: Any) -> None:
    outcome = third(Fixed(AutoresetMode.SAME_STEP, ending(final)), info={"is_success": "bool"})
    assert (outcome.success, outcome.info["is_success"].tolist()) == ([True], [False, True])


def ending(final: Any) -> Callable[[bool], dict[str, Any]]:
    """Infos of an environment that resets in the same step, with ``final`` about the lanes that have ended."""

    def infos(done: bool) -> dict[str, Any]:
        now = {"is_success": np.array([False, False])}
        return {**now, "final_obs": np.zeros((2, 1)), "final_info": final} if done else now

    return infos


def test_the_infos_of_lanes_that_have_ended_may_be_none() -> None:
    assert third(Fixed(AutoresetMode.SAME_STEP, ending(None)), info={"is_success": "bool"}).success == [None]


@pytest.mark.parametrize(
    "final", [[None], [None, "odd"], "ab", 3, np.zeros(2)], ids=["one lane", "text in it", "text", "number", "numbers"]
)
def test_infos_of_lanes_that_have_ended_are_refused_in_other_forms(final: Any) -> None:
    with pytest.raises(
        PluginError, match=r"env x:y: info\['final_info'\]: expected a dict, or a dict or None for each"
    ):
        third(Fixed(AutoresetMode.SAME_STEP, ending(final)))


@pytest.mark.parametrize(
    ("infos", "message"),
    [
        (
            {"is_success": np.ones(3)},
            r"is_success'\]: expected a number or bool for each lane, \[2\], found float64 \[3\]",
        ),
        ({"is_success": np.ones((2, 2))}, r"is_success'\]: expected a number or bool for each lane"),
        ({"is_success": True}, r"is_success'\]: expected a number or bool for each lane"),
        ({"is_success": ["yes", "no"]}, r"is_success'\]: expected a number or bool for each lane"),
        ({"is_success": [[1], [1, 2]]}, r"is_success'\]: expected values that numpy can read, of one shape"),
        ({"is_success": np.array([True], object)}, r"is_success'\]: expected a number or bool for each lane"),
        ({"is_success": np.ones(2), "_is_success": np.ones(3, bool)}, r"_is_success'\]: expected a number or bool for"),
    ],
)
def test_successes_that_are_not_one_for_each_lane_are_refused(infos: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        third(Fixed(AutoresetMode.NEXT_STEP, lambda done: infos))


def test_without_a_mode_lanes_are_reset_at_the_next_step() -> None:
    outcome = third(Fixed(None, lambda done: {}))
    assert array(outcome.final_obs).tolist() == [[3.0]]


def test_tensors_are_taken_as_arrays() -> None:
    import torch

    changes = {"obs": torch.ones(2, 1), "reward": torch.ones(2), "terminated": torch.zeros(2, dtype=torch.bool)}
    outcome = third(Fixed(AutoresetMode.NEXT_STEP, lambda done: {}, **changes))
    assert array(outcome.obs).tolist() == [[1.0], [1.0]]
    assert isinstance(outcome.reward, np.ndarray)


def test_ends_that_are_given_as_numbers_are_taken_as_booleans() -> None:
    class Numbers(Fixed):
        def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
            obs, reward, terminated, truncated, infos = super().step(actions)
            return obs, reward, terminated.astype(np.uint8), truncated.astype(np.uint8), infos

    outcome = third(Numbers(AutoresetMode.NEXT_STEP, lambda done: {}))
    assert (list(outcome.returns), list(outcome.lengths)) == ([3.0], [3]), "of the second lane alone"
    assert outcome.terminated.tolist() == [False, True]


def test_observations_of_another_shape_are_refused() -> None:
    with pytest.raises(PluginError, match=r"observation: expected float32 \[2, 1\] of -9 to 9, found float32 \[2\]"):
        third(Fixed(None, lambda done: {}, obs=np.zeros(2, np.float32)))


def ragged(*values: Any) -> Array:
    """Values of two lanes, each as it is."""
    found = np.empty(2, dtype=object)
    found[:] = values
    return found


@pytest.mark.parametrize(
    "instead",
    [
        np.zeros((2, 3)),
        np.zeros(1, np.int64),
        np.array(["left", "right"]),
        {"arm": np.zeros(2)},
        ragged([0, 1], [0, 1, 2]),
        ragged("left", None),
    ],
    ids=["shape", "one lane", "text", "parts", "two shapes", "text of one lane"],
)
def test_an_intervention_that_is_no_action_is_refused(instead: Any) -> None:
    with pytest.raises(
        PluginError, match=r"info\['human'\]: (actions: expected int64 \[2\] of|expected values that numpy can read)"
    ):
        third(Fixed(None, lambda done: {"human": instead}), intervention="human")


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


def play(env: AnyEnv, steps: int) -> None:
    lanes = lanes_of(env, EnvConfig(target="x:y"))
    for _ in range(steps):
        lanes.observe()
        lanes.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("infos", FINAL.values(), ids=FINAL)
def test_last_observations_without_a_mode_are_refused(infos: Callable[[bool], dict[str, Any]]) -> None:
    with pytest.raises(PluginError, match=r"env x:y: expected metadata\['autoreset_mode'\].* probably SAME_STEP"):
        play(Fixed(None, infos), 3)


def test_a_lane_that_goes_on_after_its_end_needs_a_mode() -> None:
    with pytest.raises(PluginError, match="the step after an episode's end gave a reward"):
        play(Fixed(None, lambda done: {}), 4)
    play(Fixed(AutoresetMode.NEXT_STEP, lambda done: {}), 4)


def test_a_lane_without_reward_after_its_end_needs_no_mode() -> None:
    play(Fixed(None, lambda done: {}, reward=np.zeros(2)), 4)


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_a_flag_that_is_nan_ends_no_episode_and_is_refused(name: str) -> None:
    env = Fixed(AutoresetMode.NEXT_STEP, lambda done: {}, **{name: np.array([0, np.nan])})
    with pytest.raises(PluginError, match=rf"env x:y: {name}: expected a bool for each lane, found \[ 0. nan\]"):
        play(env, 1)


@pytest.mark.parametrize("name", ["reward", "terminated", "truncated"])
@pytest.mark.parametrize(
    "value",
    [np.zeros((2, 1)), np.zeros(3), 0.0, [None, None], [[0], [0, 1]], torch.ones(2, dtype=torch.bfloat16)],
    ids=["column", "3", "one", "none", "ragged", "bfloat16"],
)
def test_rewards_and_flags_that_are_not_one_number_for_each_lane_are_refused(name: str, value: Any) -> None:
    env = Fixed(AutoresetMode.NEXT_STEP, lambda done: {}, **{name: value})
    with pytest.raises(PluginError, match=rf"env x:y: {name}: expected a number for each lane, \[2\], found"):
        play(env, 1)


def test_observations_in_bfloat16_are_refused_by_name() -> None:
    with pytest.raises(PluginError, match=r"env x:y: observation: expected .*, found a Tensor that numpy cannot read"):
        play(Fixed(AutoresetMode.NEXT_STEP, lambda done: {}, obs=torch.ones((2, 1), dtype=torch.bfloat16)), 1)


def test_observations_with_negative_strides_can_be_read_by_torch() -> None:
    obs = np.array([[1.0], [2.0]], np.float32)[::-1]
    outcome = third(Fixed(AutoresetMode.NEXT_STEP, lambda done: {}, obs=obs))
    assert torch.from_numpy(outcome.obs).tolist() == [[2.0], [1.0]]


def test_whole_numbers_that_do_not_fit_their_dtype_are_refused() -> None:
    env: AnyEnv = Fixed(AutoresetMode.NEXT_STEP, lambda done: {}, obs=np.array([[0], [300]]))
    env.single_observation_space = gymnasium.spaces.Box(0, 255, (1,), np.uint8)
    with pytest.raises(PluginError, match=r"expected uint8 \[2, 1\], found int64 \[2, 1\] from 0 to 300"):
        play(env, 1)


def test_an_environment_may_change_the_actions_that_it_gets() -> None:
    class Clearing(Fixed):
        def step(self, actions: Any) -> Any:
            actions[:] = 1
            return super().step(actions)

    env = Clearing(AutoresetMode.NEXT_STEP, lambda done: {"human": np.array([None, 1], object)})
    lanes = lanes_of(env, EnvConfig(target="x:y", intervention="human"))
    lanes.observe()
    given = np.zeros(2, np.int64)
    assert array(lanes.step(given).action).tolist() == [0, 1]
    assert given.tolist() == [0, 0]
