from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

from common.errors import ConfigError, PluginError
from common.interfaces import EnvSpec
from common.lanes.space_config import read_spaces
from tests.parts import CountingEnv

ACTION = {"type": "Discrete", "n": 2}
CAMERA = gymnasium.spaces.Box(0, 255, (3, 64, 64), np.uint8)
EVERY_TYPE = """
observation:
  type: Dict
  spaces:
    camera: {type: Box, low: 0, high: 255, shape: [3, 64, 64], dtype: uint8}
    state: {type: Box, low: -.inf, high: .inf, shape: [7]}
    bounds: {type: Box, low: [0, -1], high: [1, 2]}
    pair: {type: Tuple, spaces: [{type: Discrete, n: 3, start: -1}, {type: MultiBinary, n: 4}]}
action: {type: MultiDiscrete, nvec: [2, 5]}
"""


def test_every_type_of_space_can_be_described() -> None:
    spec = read_spaces(yaml.safe_load(EVERY_TYPE))
    spaces = gymnasium.spaces
    assert spec.observation_space == spaces.Dict(
        {
            "camera": CAMERA,
            "state": spaces.Box(-np.inf, np.inf, (7,)),
            "bounds": spaces.Box(np.array([0, -1], np.float32), np.array([1, 2], np.float32)),
            "pair": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(4)]),
        }
    )
    assert spec.action_space == spaces.MultiDiscrete([2, 5])


def both_spaces() -> tuple[Any, Any]:
    return CAMERA, CountingEnv.action_space


def no_spaces() -> tuple[Any, Any]:
    return CAMERA, 3


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("both_spaces", EnvSpec(*both_spaces())),
        ("CountingEnv", EnvSpec(CountingEnv.observation_space, CountingEnv.action_space)),
    ],
)
def test_a_factory_gives_both_spaces(factory: str, expected: EnvSpec) -> None:
    assert read_spaces(f"{__name__}:{factory}") == expected


@pytest.mark.parametrize("factory", ["no_spaces", "dict"])
def test_a_factory_that_gives_something_else_is_refused(factory: str) -> None:
    where = "builtins" if factory == "dict" else __name__
    with pytest.raises(ConfigError, match=r"env\.spaces: expected a gymnasium\.Space as (action|observation) space"):
        read_spaces(f"{where}:{factory}")


def three_spaces() -> tuple[Any, ...]:
    return CAMERA, CAMERA, CountingEnv.action_space


def test_a_factory_that_gives_more_than_two_spaces_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"env\.spaces: expected .*three_spaces to return an observation and an action"
    ):
        read_spaces(f"{__name__}:three_spaces")


def test_a_factory_that_is_not_there_is_a_plugin_error() -> None:
    with pytest.raises(PluginError, match="no_such"):
        read_spaces("no_such:spaces")


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"action": ACTION}, r"env\.spaces: expected the keys observation and action, found \['action'\]"),
        (
            {"observation": 3, "action": ACTION},
            r"env\.spaces\.observation: expected a mapping with type: Box, Discrete",
        ),
        ({"observation": {"type": "Text"}, "action": ACTION}, r"observation: expected a mapping with type: Box"),
        ({"observation": {"type": ["Box"]}, "action": ACTION}, r"observation: expected a mapping with type: Box"),
        ({1: ACTION, "action": ACTION}, r"expected the keys observation and action, found \[1, 'action'\]"),
        (
            {"observation": {"type": "Dict", "spaces": [ACTION]}, "action": ACTION},
            r"observation\.spaces: expected a mapping of names to spaces, found \[",
        ),
        (
            {"observation": {"type": "Box", "low": 0, "high": 1, "shape": [10**15]}, "action": ACTION},
            r"observation: no Box can be made of",
        ),
        (
            {"observation": {"type": "Box", "low": 0}, "action": ACTION},
            r"observation\.high: expected a value, found none",
        ),
        (
            {"observation": {"type": "Box", "low": 0, "high": 3, "dtype": "uint8"}, "action": ACTION},
            r"observation\.shape: expected a list, \[\] for a single number, found none",
        ),
        (
            {"observation": ACTION, "action": {**ACTION, "strat": 1}},
            r"action\.strat: unknown key of a Discrete .did you mean 'start'",
        ),
        (
            {"observation": {"type": "Tuple", "spaces": [{"type": "Discrete", "n": 0}]}, "action": ACTION},
            r"observation\.spaces\.0: no Discrete can be made of \{'n': 0\}",
        ),
        (
            {"observation": {"type": "Box", "low": [0, 1], "high": 2, "shape": [3]}, "action": ACTION},
            r"observation: no Box can be made of",
        ),
    ],
)
def test_a_wrong_description_is_refused_by_its_place(spaces: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_spaces(spaces)
