from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.config.run_config import RunConfig
from common.data import Array
from common.errors import ConfigError, PluginError
from common.lanes.building import build_env, lanes_of
from common.lanes.safe_stop import build_safe_stop
from common.plugins.part_config import EnvConfig
from common.settings import validate
from crossborder.people.device import Label
from crossborder.people.teleoperation import Outcome, Teleoperate, judge
from tests.conftest import counting_values
from tests.crossborder.people.people import Script, Slide

SCRIPT = "tests.crossborder.people.people:Script"


def scripted(env: gymnasium.Env[Any, Any], *commands: dict[str, Any], **params: Any) -> Teleoperate:
    """The environment beside a person who gives these commands."""
    return Teleoperate(env, device={"target": SCRIPT, "params": {"commands": list(commands)}}, **params)


def device_of(env: Teleoperate) -> Script:
    device = env._device
    assert isinstance(device, Script)
    return device


def test_the_persons_action_is_executed_in_place_of_the_agents_and_info_has_it() -> None:
    env = scripted(Slide(), {"action": [1.5]}, {})
    env.reset()
    obs, _, _, _, info = env.step(np.array([-1.0], np.float32))
    assert obs == 1.5
    assert info["intervene_action"] == np.array([1.5], np.float32)
    assert info["intervene_action"].dtype == np.float32
    obs, _, _, _, info = env.step(np.array([-1.0], np.float32))
    assert obs == 0.5
    assert "intervene_action" not in info


def test_the_device_sees_the_environment_and_each_observation_and_info() -> None:
    slide = Slide()
    env = scripted(slide, {}, {})
    env.reset()
    env.step(np.array([1.0], np.float32))
    env.step(np.array([1.0], np.float32))
    assert device_of(env).env is slide
    assert [(float(obs[0]), info) for obs, info in device_of(env).seen] == [
        (0.0, {"begun": True}),
        (1.0, {"is_success": False, "discarded": False}),
    ]


def test_an_action_beyond_the_bounds_is_clipped() -> None:
    env = scripted(Slide(), {"action": [9]})
    env.reset()
    assert env.step(np.zeros(1, np.float32))[4]["intervene_action"] == 2


def test_a_discrete_action_of_a_person_is_executed() -> None:
    env = scripted(gymnasium.make("CartPole-v1"), {"action": 1}, {"action": 2})
    env.reset(seed=0)
    assert env.step(0)[4]["intervene_action"] == 1
    with pytest.raises(PluginError, match=r"people:Script: expected an action of Discrete\(2\), found 2"):
        env.step(0)


def test_an_action_of_another_shape_is_an_error_that_names_the_device() -> None:
    env = scripted(Slide(), {"action": [1.0, 2.0]})
    env.reset()
    with pytest.raises(PluginError, match=r"people:Script: expected an action of Box.*found \[1.0, 2.0\]"):
        env.step(np.zeros(1, np.float32))


def test_labels_change_the_outcome_of_the_step() -> None:
    env = scripted(Slide(), {}, {"label": "success"}, reward=2.0)
    env.reset()
    assert env.step(np.zeros(1, np.float32))[1:4] == (0.5, False, False)
    _, reward, terminated, truncated, info = env.step(np.zeros(1, np.float32))
    assert (reward, terminated, truncated, info["is_success"]) == (2.5, True, False, True)


def test_a_safe_stop_before_the_first_reset_asks_no_device() -> None:
    env = scripted(Slide(), {"action": [1.5]})
    obs, _, _, _, info = env.step(np.array([-1.0], np.float32))
    assert (obs, info) == (-1.0, {})


def test_the_device_is_built_at_the_first_reset_and_closed_with_the_environment() -> None:
    slide = Slide()
    env = scripted(slide)
    assert env._device is None
    env.reset()
    device = device_of(env)
    env.reset()
    assert device_of(env) is device
    env.close()
    assert device.closed
    assert slide.closed


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "Teleoperate.device: expected a value, found none"),
        ({"device": {"target": SCRIPT, "params": {"comands": []}}}, r"device\.params\.comands: unknown parameter"),
        ({"device": {"target": "tests.crossborder.people.people:Nobody"}}, "no callable 'Nobody'"),
        (
            {"device": {"target": "crossborder.people.keyboard:Keyboard", "params": {"spead": 1}}},
            r"device\.params\.spead: unknown key \(did you mean 'speed'\?\)",
        ),
    ],
)
def test_a_wrong_parameter_is_found_when_the_wrapper_is_built(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Teleoperate(Slide(), **params)


def test_a_device_without_the_methods_of_one_is_refused() -> None:
    env = Teleoperate(Slide(), device={"target": "tests.crossborder.people.people:Mute"})
    with pytest.raises(PluginError, match="people:Mute: expected a device, found Mute without begin, read, close"):
        env.reset()


def wrapped(params: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A CartPole with the wrapper, as a configuration names it."""
    wrapper = {"target": "crossborder.people.teleoperation:Teleoperate", "params": params, **more}
    env = {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}, "intervention": "intervene_action"}
    return {**env, "wrappers": [wrapper]}


def test_a_configuration_names_the_wrapper_and_its_steps_are_recorded_as_interventions() -> None:
    commands = [{"action": 1}, {}, {"action": 0}]
    config = validate(EnvConfig, wrapped({"device": {"target": SCRIPT, "params": {"commands": commands}}}))
    lanes = lanes_of(build_env(config), config)
    found = []
    for _ in range(3):
        lanes.observe()
        outcome = lanes.step(np.zeros(1, np.int64))
        found.append(outcome.action if outcome.action is None else np.asarray(outcome.action).tolist())
    lanes.close()
    assert found == [[1], None, [0]]


def test_the_check_of_a_run_finds_a_wrong_parameter_of_the_device(tmp_path: Path) -> None:
    values = counting_values(tmp_path) | {"env": wrapped({"device": {"target": SCRIPT, "params": {"order": []}}})}
    with pytest.raises(ConfigError, match=r"env\.wrappers\.0\.params\.device: device\.params\.order: unknown"):
        validate(RunConfig, values).check()


def test_an_evaluation_can_leave_the_wrapper_out() -> None:
    params = {"device": {"target": SCRIPT, "params": {"commands": []}}}
    assert validate(EnvConfig, wrapped(params, in_evaluations=False)).for_evaluation().wrappers == ()
    assert len(validate(EnvConfig, wrapped(params)).for_evaluation().wrappers) == 1


def test_a_safe_stop_by_an_action_is_executed_while_a_person_acts() -> None:
    slide = Slide()
    env = scripted(slide, {"action": [1.5]}, {"action": [1.5], "label": "success"})
    env.reset()
    env.step(np.zeros(1, np.float32))
    build_safe_stop(EnvConfig(target="unused:unused", safe_stop=[-1.0]))(gymnasium.wrappers.TimeLimit(env, 9))
    assert slide.at == 0.5, "1.5 by the person, then -1 by the safe stop"
    env.reset()
    assert env.step(np.zeros(1, np.float32))[4]["intervene_action"] == 1.5


def test_the_action_that_a_safety_layer_below_executed_is_the_one_that_is_told() -> None:
    class Careful(Slide):
        def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
            slow = np.clip(action, -1, 1)
            outcome = super().step(slow)
            return *outcome[:4], {"intervene_action": None if slow == action else slow}

    env = scripted(Careful(), {"action": [1.5]}, {"action": [0.5]})
    env.reset()
    executed = [env.step(np.zeros(1, np.float32))[4]["intervene_action"] for _ in range(3)]
    assert executed == [1.0, 0.5, None]


def outcome(**info: Any) -> Outcome:
    return "obs", 0.25, False, False, info


@pytest.mark.parametrize(
    ("label", "reward", "ends", "info"),
    [
        (None, 0.25, (False, False), {"is_success": False, "discarded": False}),
        ("success", 1.25, (True, False), {"is_success": True, "discarded": False}),
        ("failure", 0.25, (True, False), {"is_success": False, "discarded": False}),
        ("discard", 0.25, (False, True), {"is_success": False, "discarded": True}),
    ],
)
def test_each_label_has_its_outcome(
    label: Label | None, reward: float, ends: tuple[bool, bool], info: dict[str, bool]
) -> None:
    judged = judge(outcome(force=3), label, reward=1.0, success_ends=True)
    assert judged == ("obs", reward, *ends, {"force": 3, **info})


def test_without_a_label_the_environments_own_success_counts() -> None:
    assert judge(outcome(is_success=True), None, reward=1.0, success_ends=True)[4]["is_success"] is True


def test_a_person_overrules_the_environment() -> None:
    judged = judge(outcome(is_success=True), "failure", reward=1.0, success_ends=True)
    assert (judged[2], judged[4]["is_success"]) == (True, False)


def test_a_success_need_not_end_the_episode() -> None:
    judged = judge(outcome(), "success", reward=1.0, success_ends=False)
    assert judged[1:4] == (1.25, False, False)
    assert judged[4]["is_success"] is True
