"""What a check finds in the callbacks and in the environment of a run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.config.run_config import RunConfig
from common.errors import ConfigError, PluginError
from common.interfaces import Callback, RunIdentity
from learner.loop.part_trials import try_callbacks, try_env
from tests.conftest import MakeConfig, counting_config

HERE = "tests.learner.loop.test_part_trials"


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
        (
            {"obs": [0.0, 1e20]},
            r"expected values from -1e\+12 to 1e\+12 \(server\.unusual_values clips larger ones\), found",
        ),
        ({"reward": [1.0]}, "reward: expected a number"),
        ({"reward": 1e30}, "column 'reward': expected values from"),
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
    assert "[{target: PythonActions}]" in caplog.text
    caplog.clear()
    try_env(config_of("Strict", wrappers=[{"target": "common.envs.wrappers:PythonActions"}]))
    assert not caplog.text


class Noting(Callback):
    """Writes a file into the directory of its run."""

    directory = Path()

    def __init__(self, run_dir: Path, identity: RunIdentity, config: dict[str, Any]) -> None:
        assert not identity.is_resumed
        (run_dir / config["name"]).touch()
        Noting.directory = run_dir


def test_callbacks_are_built_with_all_that_they_may_ask_for_and_nothing_remains(make_config: MakeConfig) -> None:
    try_callbacks(make_config(callbacks=[{"target": f"{HERE}:Noting"}]))
    assert Noting.directory.is_absolute()
    assert not Noting.directory.exists()


def test_a_robot_is_not_moved() -> None:
    before = Late.steps
    try_env(config_of("Late", rate_hz=10))
    assert Late.steps == before


def test_a_check_plays_the_seats_of_earlier_models_at_random(
    make_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    env = {"target": "common.envs.pettingzoo:make", "params": {"id": "classic/tictactoe-v3", "players": "pool"}}
    try_env(make_config(env=env))
    assert "it raised in a trial" not in caplog.text


def test_a_host_without_a_place_for_temporary_files_is_told_which_variable_names_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="TMPDIR: expected a directory for temporary files that can be written"):
        try_callbacks(counting_config(tmp_path))
