from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.data import Column
from common.envs import box_observations, build_env, column_of, spec_of
from common.errors import ConfigError, PluginError
from common.plugins.part_config import PluginConfig
from tests.conftest import ROOT
from tests.parts import CountingEnv


def test_the_environment_that_the_configuration_names_is_built() -> None:
    env = build_env(PluginConfig(target="gymnasium:make", params={"id": "CartPole-v1", "max_episode_steps": 5}))
    assert env.spec is not None
    assert (env.spec.id, env.spec.max_episode_steps) == ("CartPole-v1", 5)
    env.close()


@pytest.mark.parametrize("name", ["CartPoule-v1", "CartPole-v77"])
def test_an_id_that_gymnasium_does_not_know_is_a_plugin_error_with_its_reason(name: str) -> None:
    with pytest.raises(PluginError, match=rf"env gymnasium:make .*{name}.*doesn't exist"):
        build_env(PluginConfig(target="gymnasium:make", params={"id": name}))


def test_something_that_is_no_environment_is_refused() -> None:
    with pytest.raises(PluginError, match=r"expected a gymnasium\.Env, found OneStep"):
        build_env(PluginConfig(target="common.processors:OneStep"))


def test_the_spec_holds_both_spaces() -> None:
    spec = spec_of(CountingEnv())
    assert spec.observation_space is CountingEnv.observation_space
    assert spec.action_space is CountingEnv.action_space


@pytest.mark.parametrize(
    ("space", "column"),
    [
        (gymnasium.spaces.Box(-1, 1, (4, 84, 84), np.float32), Column("x", "<f4", (4, 84, 84))),
        (gymnasium.spaces.Discrete(3), Column("x", "<i8")),
        (gymnasium.spaces.MultiBinary(5), Column("x", "|i1", (5,))),
        (gymnasium.spaces.MultiDiscrete([2, 3]), Column("x", "<i8", (2,))),
    ],
)
def test_a_space_has_a_column(space: gymnasium.Space[Any], column: Column) -> None:
    assert column_of("x", space) == column


@pytest.mark.parametrize(
    ("space", "bounds"),
    [
        (gymnasium.spaces.Discrete(3), ["0 to 2"]),
        (gymnasium.spaces.Discrete(3, start=-1), ["-1 to 1"]),
        (gymnasium.spaces.MultiDiscrete([2, 3]), ["0 to 1", "0 to 2"]),
        (gymnasium.spaces.MultiDiscrete([2, 3], start=[5, 0]), ["5 to 6", "0 to 2"]),
        (gymnasium.spaces.MultiBinary(5), ["0 to 1"]),
        (gymnasium.spaces.Box(-2, 2, (3,), np.float32), ["-2 to 2"]),
        (
            gymnasium.spaces.Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32)),
            ["-1 to 1", "at least 0"],
        ),
        (gymnasium.spaces.Box(0, 10, (1,), np.int64), ["0 to 10"]),
    ],
)
def test_the_column_of_a_space_has_the_bounds_of_its_elements(space: gymnasium.Space[Any], bounds: list[str]) -> None:
    column = column_of("x", space)
    assert column.domain is not None
    assert [column.domain.text(element) for element in range(len(bounds))] == bounds
    assert column.domain.holds(np.array([space.sample() for _ in range(50)]).reshape(-1))


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),
        gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8),
    ],
)
def test_a_space_that_excludes_nothing_has_a_column_without_a_domain(space: gymnasium.Space[Any]) -> None:
    assert column_of("x", space).domain is None


@pytest.mark.parametrize(
    ("shape", "are_frames"),
    [
        ((4, 84, 84), True),
        ((1, 84, 84), True),
        ((4, 210, 160, 3), True),
        ((3, 210, 160), True),
        ((16, 32, 32), True),
        ((210, 160, 3), False),
        ((480, 640, 3), False),
        ((4, 31, 33), False),
        ((4, 7056), False),
        ((0, 84, 84), False),
    ],
)
def test_bytes_stacked_along_a_short_first_axis_are_frames(shape: tuple[int, ...], are_frames: bool) -> None:
    space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    assert column_of("x", space) == Column("x", "|u1", shape, are_frames)


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2)}),
        gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(2),)),
        gymnasium.spaces.Text(5),
    ],
)
def test_a_space_without_one_dtype_and_shape_is_refused_by_name(space: gymnasium.Space[Any]) -> None:
    with pytest.raises(ConfigError, match=r"^(obs|column 'obs'): expected"):
        column_of("obs", space)


@pytest.mark.parametrize("params", [{}, {"id": "CartPole-v1", "nonsense": 3}])
def test_parameters_an_environment_does_not_take_are_a_plugin_error(params: dict[str, Any]) -> None:
    with pytest.raises(PluginError, match="gymnasium:make"):
        build_env(PluginConfig(target="gymnasium:make", params=params))


# What is not installed.


@pytest.mark.parametrize(
    ("id", "module", "extra"),
    [("LunarLander-v3", "Box2D", "box2d"), ("HalfCheetah-v5", "mujoco", "mujoco")],
)
def test_a_package_that_an_environment_lacks_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, id: str, module: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco"))]:
        monkeypatch.delitem(sys.modules, name)  # So that they are imported again.
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PluginError, match=rf"is not installed.*; here: pip install 'crossborder\[{extra}\]'"):
        build_env(PluginConfig(target="gymnasium:make", params={"id": id}))


SMOKE = """
import sys
from common.plugins.part_config import PluginConfig
from common.envs import build_env

for id in sys.argv[1:]:
    env = build_env(PluginConfig(target="gymnasium:make", params={"id": id}))
    env.action_space.seed(0)
    for obs in (env.reset(seed=0)[0], env.step(env.action_space.sample())[0]):
        assert obs.dtype == "float32" and env.observation_space.contains(obs), (id, obs)
    env.close()
"""


def test_environments_of_box2d_and_mujoco_are_built_and_stepped(tmp_path: Path) -> None:
    """In a process of its own: Box2D's extension does not survive being imported where warnings are errors."""
    ids = ("LunarLander-v3", "HalfCheetah-v5", "Hopper-v5")
    done = subprocess.run(
        [sys.executable, "-c", SMOKE, *ids],
        cwd=tmp_path,  # MuJoCo writes its log there.
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# Observations.


class Fixed(gymnasium.Env[Any, Any]):
    """Always observes the same."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space: gymnasium.Space[Any], obs: Any) -> None:
        self.observation_space = space
        self._obs = obs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._obs, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._obs, 0.0, False, False, {}


GOAL = {"observation": np.array([1.5, -2.0]), "desired_goal": np.array([0.25]), "achieved_goal": np.array([0.5])}


@pytest.mark.parametrize(
    ("space", "obs", "flat", "dtype"),
    [
        (
            gymnasium.spaces.Dict(
                {name: gymnasium.spaces.Box(-5, 5, value.shape, np.float64) for name, value in GOAL.items()}
            ),
            GOAL,
            [0.5, 0.25, 1.5, -2.0],  # A plain dict's keys are sorted.
            np.float32,
        ),
        (gymnasium.spaces.Discrete(4, start=1), 3, [0, 0, 1, 0], np.int64),
        (gymnasium.spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0], np.int64),
        (
            gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(-1, 1, (1, 2)))),
            (1, np.array([[0.5, -0.5]], np.float32)),
            [0, 1, 0.5, -0.5],
            np.float32,
        ),
    ],
)
def test_an_observation_that_is_no_box_becomes_one_flat_box(
    space: gymnasium.Space[Any], obs: Any, flat: list[float], dtype: type
) -> None:
    env = box_observations(Fixed(space, obs))
    assert isinstance(env.observation_space, gymnasium.spaces.Box)
    for found in (env.reset(seed=0)[0], env.step(0)[0]):
        assert found.tolist() == flat
        assert found.dtype == env.observation_space.dtype == dtype
        assert env.observation_space.contains(found)


def test_the_entries_of_a_dict_keep_the_order_they_were_given_in_by_name() -> None:
    space = gymnasium.spaces.Dict(b=gymnasium.spaces.Box(-1, 1, (1,)), a=gymnasium.spaces.Box(-1, 1, (1,)))
    env = box_observations(Fixed(space, {"a": np.zeros(1, np.float32), "b": np.ones(1, np.float32)}))
    assert env.reset()[0].tolist() == [1, 0]


def test_observations_and_bounds_of_float64_become_float32() -> None:
    space = gymnasium.spaces.Box(np.array([-0.1, -np.inf]), np.array([0.1, np.inf]), dtype=np.float64)
    env = box_observations(Fixed(space, np.array([0.1, 1e10])))
    obs, _ = env.reset()
    assert obs.dtype == env.observation_space.dtype == np.float32
    assert env.observation_space.contains(obs)
    assert column_of("obs", env.observation_space) == Column("obs", "<f4", (2,))


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8),
        gymnasium.spaces.Box(-1, 1, (3,), np.float32),
        gymnasium.spaces.Box(0, 9, (1,), np.int64),
        gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2)),
    ],
)
def test_any_other_observation_stays_as_it_is(space: gymnasium.Space[Any]) -> None:
    env = Fixed(space, space.sample())
    assert box_observations(env) is env
