from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.errors import ConfigError, PluginError
from common.lanes.building import build_env, build_lanes
from common.lanes.safe_stop import as_action, build_safe_stop, check_safe_stop, stop_safely
from common.plugins.part_config import EnvConfig
from tests.robots import Robot, told

ARM = gymnasium.spaces.Dict(
    {"joints": gymnasium.spaces.Box(-1, 1, (3,), np.float32), "gripper": gymnasium.spaces.Discrete(2)}
)
STOPPED: list[object] = []


def config(**values: Any) -> EnvConfig:
    return EnvConfig(target="tests.robots:Robot", **values)


def stop_by_callback(env: object) -> None:
    STOPPED.append(env)


def test_a_method_of_the_environment_may_be_the_safe_stop(tmp_path: Path) -> None:
    lanes = build_lanes(config(params={"log": str(tmp_path / "log")}, safe_stop="halt"), 2)
    stop_safely(lanes, config(safe_stop="halt"))
    assert told(tmp_path / "log") == ["halt", "halt"]


def test_an_action_may_be_the_safe_stop(tmp_path: Path) -> None:
    class Arm(gymnasium.Env[Any, Any]):
        action_space = ARM
        taken: Any = None

        def step(self, action: Any) -> Any:
            self.taken = action

    env = Arm()
    build_safe_stop(config(safe_stop={"joints": [0, 0, 0.5], "gripper": 1}))(env)
    np.testing.assert_array_equal(env.taken["joints"], np.array([0, 0, 0.5], np.float32), strict=True)
    assert env.taken["gripper"] == 1


def test_a_function_may_be_the_safe_stop() -> None:
    robot = Robot("unused")
    build_safe_stop(config(safe_stop=f"{__name__}:stop_by_callback"))(robot)
    assert [robot] == STOPPED


def test_a_safe_stop_that_fails_is_logged_and_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    build_safe_stop(config(safe_stop="hlat"))(Robot("unused"))
    assert caplog.messages == ["the safe stop failed: the robot may still move"]


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (gymnasium.spaces.Discrete(3), 3),
        (gymnasium.spaces.Discrete(3), 1.5),
        (gymnasium.spaces.Box(-1, 1, (2,), np.float32), [0]),
        (gymnasium.spaces.Box(-1, 1, (2,), np.float32), [0, 2]),
        (ARM, {"joints": [0, 0, 0]}),
        (ARM, {"joints": [0, 0, 9], "gripper": 0}),
        (ARM, 0.0),
        (gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2)]), [0, 0]),
    ],
)
def test_a_value_that_is_no_action_is_refused(space: gymnasium.Space[Any], value: Any) -> None:
    with pytest.raises(ConfigError, match=r"env\.safe_stop.*: expected an action of .*, found"):
        check_safe_stop(config(safe_stop=value), space)


def test_actions_get_the_dtypes_of_their_spaces() -> None:
    assert as_action(gymnasium.spaces.Discrete(3), 2.0) == 2
    pair = as_action(
        gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2), gymnasium.spaces.MultiBinary(2)]), [1, [0, 1]]
    )
    assert pair[0] == 1
    np.testing.assert_array_equal(pair[1], np.array([0, 1], np.int8), strict=True)


def test_methods_and_functions_are_looked_for_where_the_environment_is() -> None:
    space = Robot.action_space
    check_safe_stop(config(safe_stop="hlat"), space)
    check_safe_stop(config(safe_stop="no_such:function"), space)
    with pytest.raises(PluginError, match=r"env\.safe_stop: expected a method of the environment, found 'hlat'"):
        check_safe_stop(config(safe_stop="hlat"), space, Robot("unused"))
    with pytest.raises(PluginError, match="no_such"):
        check_safe_stop(config(safe_stop="no_such:function"), space, Robot("unused"))


@pytest.mark.parametrize("setting", [{"rate_hz": 10.0}, {"safe_stop": "halt"}])
def test_a_vector_environment_is_no_robot(setting: dict[str, Any]) -> None:
    with pytest.raises(PluginError, match=r"expected a plain environment with env\.rate_hz or env\.safe_stop"):
        build_env(EnvConfig(target="gymnasium:make_vec", params={"id": "CartPole-v1"}, **setting))
