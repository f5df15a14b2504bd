"""``--check`` plays the environment and looks at its values."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from common.config.run_config import RunConfig
from common.errors import PluginError
from learner.loop.env_trial import try_env

HERE = "tests.learner.loop.test_env_trial"


class Late(gymnasium.Env[Any, Any]):
    """Episodes of 50 steps, in the last of which one value of the outcome is another."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)
    steps = 0

    def __init__(self, **last: Any) -> None:
        self._last = last

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._at = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._at += 1
        Late.steps += 1
        given = {"obs": np.zeros(2, np.float32), "reward": 0.0, "terminated": self._at == 50, "truncated": False}
        return (*(given | (self._last if self._at == 50 else {})).values(), {})


class Strict(Late):
    def step(self, action: Any) -> Any:
        if not isinstance(action, int):
            raise TypeError("expected an int")
        return super().step(action)


def config_of(name: str, **env: Any) -> RunConfig:
    agent = {"target": "common.agents.dqn:DQN"}
    return RunConfig.model_validate(
        {"name": "case", "env": {"target": f"{HERE}:{name}", **env}, "agent": agent, "trainer": {"max_opts": 1}}
    )


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ({"obs": [1.0]}, r"observation: expected float32 \[2\]"),
        ({"obs": [0.0, float("nan")]}, "column 'obs': expected finite values, found nan"),
        ({"obs": [0.0, 1e20]}, "expected values of at most .*largest_value"),
        ({"reward": [1.0]}, "reward: expected a number"),
        ({"reward": 1e30}, "column 'reward': expected values of at most"),
        ({"terminated": [True]}, "terminated: expected a bool"),
    ],
)
def test_a_value_that_only_the_end_of_an_episode_has_is_found(last: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=f"env {HERE}:Late .*{message}"):
        try_env(config_of("Late", params=last))


def test_floats_outside_their_bounds_are_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    try_env(config_of("Late", params={"obs": [0.0, 5.0]}))
    assert "obs has values outside its space" in caplog.text


def test_an_exception_is_logged_and_a_type_error_names_the_wrapper_that_helps(caplog: pytest.LogCaptureFixture) -> None:
    try_env(config_of("Strict"))
    assert "common.envs.wrappers:PythonActions" in caplog.text
    caplog.clear()
    try_env(config_of("Strict", wrappers=[{"target": "common.envs.wrappers:PythonActions"}]))
    assert not caplog.text


def test_a_robot_is_not_moved() -> None:
    before = Late.steps
    try_env(config_of("Late", rate_hz=10))
    assert Late.steps == before
