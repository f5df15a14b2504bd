from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from common.config import PluginConfig
from common.data import Column
from common.envs import build_env, column_of, spec_of
from common.errors import ConfigError, PluginError
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
