from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.data import Array
from common.errors import CheckpointError, ConfigError
from common.lanes.building import build_env
from common.plugins.part_config import EnvConfig
from common.settings import validate
from crossborder.people.teleoperation import Teleoperate
from crossborder.rewards.reward_classifier import RewardClassifier
from tests.crossborder.rewards.classifiers import brightness_file

SHAPE = (3, 16, 16)
SHIPPED = "crossborder.rewards.reward_classifier:RewardClassifier"


class Lamp(gymnasium.Env[dict[str, Array], np.int64]):
    """A lamp that is on while the action is 1, seen by a camera; its own rewards mean nothing."""

    def __init__(self, shape: tuple[int, ...] = SHAPE) -> None:
        camera = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.observation_space: Any = gymnasium.spaces.Dict(camera=camera, joint=gymnasium.spaces.Box(-1, 1, (1,)))
        self.action_space = gymnasium.spaces.Discrete(2)
        self._shape = shape

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._observe(0), {}

    def step(self, action: Any) -> Any:
        return self._observe(action), 7.0, False, False, {"lamp": "lit"}

    def _observe(self, action: int) -> dict[str, Array]:
        return {"camera": np.full(self._shape, 255 * action, np.uint8), "joint": np.zeros(1, np.float32)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return brightness_file(tmp_path / "reward.safetensors", {"camera": SHAPE})


def test_a_picture_of_success_is_rewarded_and_ends_the_episode(path: Path) -> None:
    env = RewardClassifier(Lamp(), path=str(path))
    env.reset()
    _, reward, terminated, truncated, info = env.step(0)
    assert (reward, terminated, truncated, info["is_success"]) == (0.0, False, False, False)
    assert info["success_probability"] < 0.1
    _, reward, terminated, truncated, info = env.step(1)
    assert (reward, terminated, truncated, info["is_success"], info["lamp"]) == (1.0, True, False, True, "lit")
    assert info["success_probability"] > 0.9


def test_a_threshold_of_ones_own_replaces_that_of_the_file(path: Path) -> None:
    env = RewardClassifier(Lamp(), path=str(path), threshold=0.999999)
    env.reset()
    assert env.step(1)[1:3] == (0.0, False)


def test_several_steps_in_a_row_may_be_asked_for(path: Path) -> None:
    env = RewardClassifier(Lamp(), path=str(path), steps=2)
    env.reset()
    assert [env.step(action)[2] for action in (1, 0, 1)] == [False, False, False]
    env.reset()
    assert [env.step(action)[2] for action in (1, 1)] == [False, True]


def test_a_single_picture_needs_no_key(tmp_path: Path) -> None:
    path = brightness_file(tmp_path / "reward.safetensors", {"": SHAPE})
    lamp = Lamp()
    env = RewardClassifier(
        gymnasium.wrappers.TransformObservation(lamp, lambda obs: obs["camera"], lamp.observation_space["camera"]),
        path=str(path),
    )
    env.reset()
    assert env.step(1)[1] == 1.0


def test_other_pictures_than_those_of_which_it_has_learnt_are_refused(path: Path) -> None:
    message = r"reward\.safetensors: expected a picture 'camera' of uint8 \[3, 16, 16\] in observations, found Dict"
    with pytest.raises(ConfigError, match=message):
        RewardClassifier(Lamp((3, 24, 24)), path=str(path))


def test_a_wrong_parameter_and_a_missing_file_are_named(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"RewardClassifier\.treshold: unknown key \(did you mean 'threshold'"):
        RewardClassifier(Lamp(), path=str(path), treshold=0.5)
    with pytest.raises(CheckpointError, match="expected the file of a reward classifier, found none"):
        RewardClassifier(Lamp(), path=str(path / "no"))


def test_a_configuration_names_it_together_with_a_person_who_overrules_it(path: Path) -> None:
    script = {"target": "tests.crossborder.people.people:Script", "params": {"commands": [{"label": "failure"}]}}
    teleoperate = {"target": "crossborder.people.teleoperation:Teleoperate", "params": {"device": script}}
    rewarded = {"target": SHIPPED, "params": {"path": str(path)}}
    values = {"target": "tests.crossborder.rewards.test_reward_classifier:Lamp", "wrappers": [rewarded, teleoperate]}
    env = build_env(validate(EnvConfig, values))
    assert isinstance(env, Teleoperate)
    env.reset()
    _, _, terminated, _, info = env.step(0)
    assert (terminated, info["is_success"], info["success_probability"] < 0.5) == (True, False, True)
