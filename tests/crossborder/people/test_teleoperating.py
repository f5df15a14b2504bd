from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.episode_files import read_episode
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.plugins.part_config import EnvConfig
from common.settings import validate
from crossborder.people.teleoperating import Resting, record_demonstrations

SCRIPT = "tests.crossborder.people.people:Script"
SLIDE = "tests.crossborder.people.people:Slide"


def teleoperated(*commands: dict[str, Any], **changes: Any) -> EnvConfig:
    """A slide beside a person who gives these commands in each episode."""
    device = {"target": SCRIPT, "params": {"commands": list(commands)}}
    wrapper = {"target": "crossborder.people.teleoperation:Teleoperate", "params": {"device": device}}
    limit = {"target": "gymnasium.wrappers:TimeLimit", "params": {"max_episode_steps": 4}}
    return validate(EnvConfig, {"target": SLIDE, "wrappers": [limit, wrapper], **changes})


def test_each_episode_of_a_person_becomes_a_file(tmp_path: Path) -> None:
    told: list[str] = []
    config = teleoperated({"action": [1.0]}, {}, {"action": [2.0], "label": "success"})
    assert record_demonstrations(config, tmp_path, 2, threading.Event(), told.append) == 2
    first, second = sorted(tmp_path.iterdir())
    episode = read_episode(first)
    np.testing.assert_array_equal(episode["obs"], [[0], [1], [1], [3]])
    np.testing.assert_array_equal(episode["action"], [[1], [0], [2]])
    assert episode["intervened"].tolist() == [True, False, True]
    assert episode["reward"].tolist() == [0.5, 0.5, 1.5]
    assert episode["terminated"].tolist() == [False, False, True]
    assert episode["info/is_success"].tolist() == [False, False, True]
    assert second.suffix == ".npz"
    assert told == [f"episode {n}: 3 steps, 2 of them by the person, return 2.5, success" for n in (1, 2)]


def test_a_discarded_episode_is_not_written_and_does_not_count(tmp_path: Path) -> None:
    stopped, told = threading.Event(), list[str]()

    def tell(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            stopped.set()

    assert record_demonstrations(teleoperated({"label": "discard"}), tmp_path, 1, stopped, tell) == 0
    assert told[0] == "discarded: 1 steps, 0 of them by the person, return 0.5"
    assert list(tmp_path.iterdir()) == []


def test_an_episode_that_cannot_be_written_is_not_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    gone = tmp_path / "gone"
    assert record_demonstrations(teleoperated({"label": "success"}), gone, 1, threading.Event(), told.append) == 0
    assert told == ["episode 1: 1 steps, 0 of them by the person, return 1.5, success"]
    assert "1 episodes could not be recorded" in caplog.text


def test_an_episode_that_has_not_ended_is_not_written(tmp_path: Path) -> None:
    stopped = threading.Event()
    stopped.set()
    assert record_demonstrations(teleoperated(rate_hz=100), tmp_path, None, stopped, print) == 0
    assert list(tmp_path.iterdir()) == []


def test_steps_keep_the_rate_of_the_environment(tmp_path: Path) -> None:
    config = teleoperated({"label": "failure"}, rate_hz=500, info={"begun": "bool"})
    told: list[str] = []
    record_demonstrations(config, tmp_path, 1, threading.Event(), told.append)
    assert told == ["episode 1: 1 steps, 0 of them by the person, return 0.5, no success"]
    assert "info/begun" in read_episode(next(tmp_path.iterdir()))


@pytest.mark.parametrize("target", [SLIDE, "gymnasium:make_vec"])
def test_an_environment_without_a_device_is_refused(tmp_path: Path, target: str) -> None:
    params = {} if target == SLIDE else {"id": "CartPole-v1", "num_envs": 1}
    config = validate(EnvConfig, {"target": target, "params": params})
    with pytest.raises(ConfigError, match=r"env\.wrappers: expected Teleoperate"):
        record_demonstrations(config, tmp_path, 1, threading.Event(), print)


def test_an_agent_at_rest_gives_each_lane_the_resting_action_of_any_space() -> None:
    from gymnasium import spaces

    structured = spaces.Dict(arm=spaces.Box(1, 2, (2,), np.float32), gripper=spaces.Discrete(3))
    actions = Resting(EnvSpec(spaces.Box(0, 1, (4,)), structured)).sample(np.zeros((2, 4), np.float32))
    assert isinstance(actions, dict)
    np.testing.assert_array_equal(actions["arm"], np.ones((2, 2)))
    np.testing.assert_array_equal(actions["gripper"], [0, 0])
    single = Resting(EnvSpec(structured, spaces.Discrete(3))).sample({"arm": np.zeros((3, 2))})
    np.testing.assert_array_equal(single, [0, 0, 0])


def halt(_: object) -> None:
    logging.getLogger(__name__).info("halt")


def test_the_robot_is_stopped_before_the_disk_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = teleoperated({"label": "success"}, safe_stop=f"{__name__}:halt")
    with caplog.at_level(logging.INFO):
        record_demonstrations(config, tmp_path, 1, threading.Event(), str)
    assert [message.split()[0] for message in caplog.messages] == ["halt", "a", "recorded"], "a safe stop was made"
