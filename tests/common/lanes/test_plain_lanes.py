"""Plain environments, which are reset one by one."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from common.data import Array
from common.errors import PluginError
from common.lanes.building import lanes_of
from common.lanes.plain_lanes import PlainLanes
from common.plugins.part_config import EnvConfig
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

    with pytest.raises(PluginError, match=r"env: observation: expected float32 \[3\], found"):
        lanes_of(Odd()).observe()


def test_an_observation_that_lacks_a_part_is_refused() -> None:
    class Lacking(Goals):
        def _obs(self) -> dict[str, Array]:
            return {"observation": np.zeros(1)}

    with pytest.raises(PluginError, match=r"env: observation: leaf 'achieved_goal': expected .*, found no such leaf"):
        lanes_of(Lacking()).observe()


class Camera(gymnasium.Env[Any, Any]):
    """Its space promises bytes; its observations are given."""

    observation_space = gymnasium.spaces.Box(0, 255, (3,), np.uint8)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)

    def __init__(self, *given: Any) -> None:
        self._given = list(given)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._given.pop(0), {}

    def step(self, action: Any) -> Any:
        return self._given.pop(0), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (np.array([0.1, 0.5, 0.9]), r"float64 \[3\] from 0.1 to 0.9"),
        (np.array([-1, 300, 4]), r"int64 \[3\] from -1 to 300"),
        ([1, 2, 256], r"int64 \[3\] from 1 to 256"),
        (np.array([0, 1, np.nan]), r"float64 \[3\]"),
        (["1", "2", "3"], r"\['1', '2', '3'\]"),
        (torch.ones(3, requires_grad=True), r"a Tensor that numpy cannot read: .* requires grad"),
        (torch.ones(3, dtype=torch.bfloat16), r"a Tensor that numpy cannot read: .*BFloat16"),
    ],
    ids=["floats", "int64", "list", "nan", "text", "gradients", "bfloat16"],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_values_that_the_dtype_of_the_space_cannot_hold_are_refused(given: Any, found: str, *, is_late: bool) -> None:
    env = Camera(np.zeros(3, np.uint8), given) if is_late else Camera(given)
    lanes = lanes_of(env, EnvConfig(target="my:Camera", params={"n": 1}))
    message = r"env my:Camera \{'n': 1\}: observation: expected uint8 \[3\], found "
    if is_late:
        lanes.observe()
    with pytest.raises(PluginError, match=message + found):
        lanes.step(np.zeros(1, np.int64)) if is_late else lanes.observe()


@pytest.mark.parametrize("given", [[1, 2, 3], np.array([1.0, 2.0, 3.0]), np.array([1, 2, 3])])
def test_whole_numbers_that_fit_are_taken_in_any_dtype(given: Any) -> None:
    assert array(lanes_of(Camera(given)).observe()).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": np.array([1.0])}, r"reward: expected a number, found array\(\[1.\]\)"),
        ({"reward": [1.0]}, "reward: expected a number, found"),
        ({"reward": None}, "reward: expected a number, found None"),
        ({"terminated": None, "truncated": None}, "terminated: expected a bool, found None"),
        ({"truncated": None}, "truncated: expected a bool, found None"),
        ({"terminated": [False]}, r"terminated: expected a bool, found \[False\]"),
        ({"truncated": "False"}, "truncated: expected a bool, found 'False'"),
        ({"truncated": np.array([True, False])}, "truncated: expected a bool, found array"),
        ({"terminated": float("nan")}, "terminated: expected a bool, found nan"),
        ({"truncated": np.float32("nan")}, "truncated: expected a bool, found .*nan"),
        ({"reward": "1.0"}, "reward: expected a number, found '1.0'"),
        ({"reward": torch.ones((), requires_grad=True)}, "reward: expected a number, found tensor.*requires_grad"),
        ({"reward": torch.ones((), dtype=torch.bfloat16)}, "reward: expected a number, found tensor.*bfloat16"),
        ({"reward": torch.ones(2)}, "reward: expected a number, found tensor"),
        ({"reward": 10**400}, "step: reward, terminated or truncated: int too large to convert to float"),
        ({"truncated": torch.ones(2)}, "truncated: expected a bool, found tensor"),
        ({"truncated": True, "info": {"is_success": np.ones(2)}}, r"info\['is_success'\]: expected a bool, found"),
        ({"truncated": True, "info": {"is_success": torch.ones(2)}}, r"info\['is_success'\]: expected a bool, found"),
    ],
)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_rewards_and_flags_that_are_no_single_number_are_refused(changes: dict[str, Any], message: str) -> None:
    class Odd(CountingEnv):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            outcome = {"reward": reward, "terminated": terminated, "truncated": truncated, "info": info, **changes}
            return obs, *outcome.values()

    lanes = lanes_of(Odd(), EnvConfig(target="my:Odd"))
    with pytest.raises(PluginError, match=f"env my:Odd: {message}"):
        lanes.step(answers(lanes.observe()))


class Clearing(gymnasium.Env[Any, Any]):
    """Clears the action that it gets. In every second environment somebody intervenes."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, *, intervenes: bool) -> None:
        self.info = {"instead": np.full(2, 0.5, np.float32)} if intervenes else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        action *= 0.0
        return np.zeros(1, np.float32), 0.0, False, False, self.info


def test_an_environment_may_change_the_action_that_it_gets() -> None:
    envs = [Clearing(intervenes=j == 1) for j in range(2)]
    lanes = lanes_of(envs, EnvConfig(target="x:y", intervention="instead"))
    lanes.observe()
    given = np.ones((2, 2), np.float32)
    assert array(lanes.step(given).action).tolist() == [[1, 1], [0.5, 0.5]]
    assert given.tolist() == [[1, 1], [1, 1]]


def test_environments_get_seeds_of_32_bits() -> None:
    seeds: list[Any] = []

    class Old(CountingEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            seeds.append(seed)
            np.random.RandomState(seed)
            return super().reset(seed=seed)

    lanes = lanes_of([Old(), Old()])
    lanes.reset((1 << 32) - 1)
    lanes.observe()
    assert seeds == [(1 << 32) - 1, 0]
