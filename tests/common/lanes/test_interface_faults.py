"""An environment without gymnasium's interface is named, with what is expected of it, and is not built again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from actor.sampling.guard import Guard
from actor.sampling.resumable import TapedEnv
from actor.stat import ActorCounters
from common.envs.wrappers import PythonActions
from common.errors import ConfigError, PluginError
from common.lanes.building import lanes_of, spec_of
from common.lanes.lanes import Busy, Lanes
from common.process.child import RestartPolicy


class Two(gymnasium.Env[Any, Any]):
    """Its observations have two numbers, as many as the result of a reset has parts."""

    observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}


class UnsayableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unsayable(Two):
    """Its errors cannot be put into words."""

    def step(self, action: Any) -> Any:
        raise UnsayableError


class OldStep(Two):
    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, {}


class NothingFromStep(Two):
    def step(self, action: Any) -> Any:
        return None


class OldReset(Two):
    def reset(self, **_: Any) -> Any:
        return np.zeros(2, np.float32)


class OldResetOfThree(OldReset):
    """gymnasium's vector environments take an observation of two numbers for an observation and an info."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)

    def reset(self, **_: Any) -> Any:
        return np.zeros(3, np.float32)


class NoSeed(Two):
    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(2, np.float32), {}


class NoInfo(Two):
    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, None


STEP = r"env: step: expected \(observation, reward, terminated, truncated, info\), found another result: .*unpack.*gym"
RESET = r"env: reset: expected \(observation, info\), found .*gym before 0\.26"
ARGUMENTS = r"env: reset: expected reset\(self, \*, seed=None, options=None\), found .*NoSeed\.reset\(\) got"
FAULTS: list[tuple[type[Two], str]] = [(OldStep, STEP), (NothingFromStep, STEP), (OldReset, RESET), (NoSeed, ARGUMENTS)]
WAYS: dict[str, Callable[[type[Two]], Any]] = {
    "plain": lambda env: env(),
    "with a wrapper": lambda env: TimeLimit(env(), 10),
    "in turns": lambda env: TapedEnv(env()),
}


def act(lanes: Lanes) -> None:
    lanes.reset(0)
    lanes.observe()
    lanes.step(np.ones(lanes.n, np.int64))


def play(lanes: Lanes) -> None:
    try:
        act(lanes)
    finally:
        lanes.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("env", "message"), FAULTS)
def test_another_result_or_other_arguments_are_named(env: type[Two], message: str, way: str) -> None:
    with pytest.raises(PluginError, match=message):
        play(lanes_of(WAYS[way](env)))


@pytest.mark.filterwarnings("ignore::UserWarning")  # Of gymnasium, about the error and about closing afterwards.
@pytest.mark.parametrize(
    ("env", "message"), [(OldStep, STEP), (OldReset, RESET), (OldResetOfThree, RESET), (NoSeed, ARGUMENTS)]
)
@pytest.mark.parametrize("make", [SyncVectorEnv, AsyncVectorEnv])
def test_an_environment_inside_a_vector_environment_is_named(make: Any, env: type[Two], message: str) -> None:
    vector = make([env])
    try:
        with pytest.raises(PluginError, match=message):
            act(lanes_of(vector))
    finally:
        vector.close(terminate=True)


def test_an_info_that_is_no_dict_is_named() -> None:
    with pytest.raises(PluginError, match="env: step: expected an info that is a dict, found None"):
        play(lanes_of(NoInfo()))


@pytest.mark.parametrize(("env", "message"), FAULTS)
def test_another_environment_of_this_kind_is_not_tried(env: type[Two], message: str) -> None:
    counters, lanes = ActorCounters(), lanes_of(env())
    lanes.keep(Guard(env, RestartPolicy(5), counters, Busy(), stopped=threading.Event()))
    with pytest.raises(PluginError, match=message):
        play(lanes)
    assert not counters.env_rebuilds


def test_an_exception_that_cannot_be_put_into_words_costs_an_episode_as_any_other() -> None:
    counters, lanes = ActorCounters(), lanes_of(Unsayable())
    lanes.keep(Guard(Two, RestartPolicy(5), counters, Busy(), stopped=threading.Event()))
    play(lanes)
    assert counters.env_rebuilds == 1


class Unpacking(Two):
    """Its own mistake, not one of its interface."""

    def step(self, action: Any) -> Any:
        one, two, three = self.reset()
        return one, two, three


@pytest.mark.parametrize("make", [Unpacking, lambda: TimeLimit(Unpacking(), 10), lambda: SyncVectorEnv([Unpacking])])
def test_a_mistake_inside_an_environment_stays_its_own(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="not enough values to unpack"):
        play(lanes_of(make()))


def take_int(action: Any) -> None:
    if not isinstance(action, int):
        raise TypeError(f"expected an int, found {type(action)}")


class Strict(Two):
    def __init__(self, look: Callable[[Any], object], action_space: gymnasium.Space[Any]) -> None:
        self._look, self.action_space = look, action_space

    def step(self, action: Any) -> Any:
        self._look(action)
        return super().step(action)


@pytest.mark.parametrize(
    ("look", "space", "kind"),
    [
        (take_int, gymnasium.spaces.Discrete(2), "int64"),
        (json.dumps, gymnasium.spaces.Discrete(2), "int64"),
        (json.dumps, gymnasium.spaces.Box(-1, 1, (2,), np.float32), "ndarray"),
    ],
)
@pytest.mark.parametrize("is_vector", [False, True])
def test_a_type_of_action_that_is_refused_is_named_with_the_wrapper_that_helps(
    look: Callable[[Any], object], space: gymnasium.Space[Any], kind: str, *, is_vector: bool
) -> None:
    make = partial(Strict, look, space)
    lanes = lanes_of(SyncVectorEnv([make]) if is_vector else make())
    lanes.observe()
    actions = np.zeros((1, *(space.shape or ())), space.dtype)
    with pytest.raises(PluginError, match=f"expected a step that takes numpy's {kind}, found TypeError: .*Python"):
        lanes.step(actions)
    lanes = lanes_of(PythonActions(make()))
    lanes.observe()
    lanes.step(actions)


def assert_int(action: Any) -> None:
    assert isinstance(action, int)


def test_an_assertion_that_may_be_about_the_type_of_an_action_gets_a_note() -> None:
    with pytest.raises(AssertionError) as caught:
        play(lanes_of(Strict(assert_int, gymnasium.spaces.Discrete(2))))
    assert "[{target: PythonActions}]" in caught.value.__notes__[0]


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_a_space_of_another_package_is_named_before_an_agent_sees_it(name: str) -> None:
    class Discrete:
        """As of the package gym: it prints like gymnasium's."""

    env = Two()
    setattr(env, name, Discrete())
    with pytest.raises(ConfigError, match="a Discrete of the package tests: crossborder needs the spaces of gymnasium"):
        spec_of(env)
