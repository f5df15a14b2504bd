"""``check_env`` passes a good environment, and says what is wrong with one that is broken in one way."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from common.parts import SameColumns
from crossborder.testing import check_env
from examples.own_parts import Corridor
from tests.common.agents.parts import Structured
from tests.crossborder.testing.parts import Broken, Walk, broken, fails_saying
from tests.parts import Goals


def step_with(**changes: Any) -> Any:
    """A ``step`` that gives something else in one place."""

    def step(self: Walk, action: int) -> tuple[Any, ...]:
        names = ("obs", "reward", "terminated", "truncated", "info")
        given = dict(zip(names, Walk.step(self, action), strict=True))
        return tuple((given | changes).values())

    return step


def step_later_with(**changes: Any) -> Any:
    """A ``step`` that gives something else in one place from the sixth step of an episode on."""

    def step(self: Walk, action: int) -> Any:
        return step_with(**changes if self.steps > 5 else {})(self, action)

    return step


def only_int(self: Walk, action: int) -> Any:
    if not isinstance(action, int):
        raise TypeError(f"expected an int, found {type(action)}")
    return Walk.step(self, action)


RESET = "expected reset(self, *, seed=None, options=None)"


BROKEN_ENVS: dict[str, Broken] = {
    "a space of many parts": (
        {"action_space": property(lambda self: gymnasium.spaces.Text(3), lambda self, value: None)},
        "the parts of action_space must each have one dtype and one shape",
    ),
    "no space": (
        {"action_space": property(lambda self: None, lambda self, value: None)},
        "action_space is None: set it to a gymnasium.Space",
    ),
    "an old reset": ({"reset": lambda self: (self.obs(), {})}, RESET),
    "no options": ({"reset": lambda self, seed=None: (self.obs(), {})}, RESET),
    "no info": ({"reset": lambda self, **_: self.obs()}, "return observation, info"),
    "an info of another kind": ({"reset": lambda self, **_: (self.obs(), None)}, "even if it is empty"),
    "a dtype of its own": (
        {"obs": lambda self: np.array([self.at])},
        "reset() gave an observation of float64, its space wants float32: return np.array(…, np.float32)",
    ),
    "another shape": (
        {"obs": lambda self: np.array(self.at, np.float32)},
        "reset() gave an observation of shape [], its space wants [1]",
    ),
    "outside its space": (
        {"obs": lambda self: np.full(1, 31, np.float32)},
        "gave an observation outside its space",
    ),
    "text later": (
        {"obs": lambda self: np.array(["a"]) if self.steps > 5 else np.zeros(1, np.float32)},
        "step() gave an observation that cannot be one of its space (ValueError: ",
    ),
    "a tensor with gradients": (
        {"obs": lambda self: torch.zeros(1, requires_grad=True)},
        "reset() gave an observation that is no array (RuntimeError: Can't call numpy() on Tensor that requires grad",
    ),
    "no reward later": (
        {"step": step_later_with(reward=None)},
        "step() gave a reward of None and (False, False): return a number and two bools (TypeError: ",
    ),
    "flags of two later": (
        {"step": step_later_with(terminated=np.zeros(2))},
        "(array([0., 0.]), False): return a number and two bools (ValueError: ",
    ),
    "no number": ({"obs": lambda self: np.full(1, np.nan, np.float32)}, "observation that is not finite"),
    "outside its space later": (
        {"obs": lambda self: np.full(1, 31.0 if self.steps > 5 else 0.0, np.float32)},
        "step() gave an observation outside its space",
    ),
    "one flag for both ends": (
        {"step": lambda self, action: Walk.step(self, action)[:4]},
        "return observation, reward, terminated, truncated, info",
    ),
    "a reward that is none": ({"step": step_with(reward=None)}, "step() gave a reward of None: return a number"),
    "a reward that is text": ({"step": step_with(reward="1")}, "step() gave a reward of '1': return a number"),
    "an infinite reward": ({"step": step_with(reward=np.inf)}, "step() gave a reward of inf: rows must be finite"),
    "no info of a step": ({"step": step_with(info=None)}, "step() gave an info of NoneType: return a dict"),
    "no actions of numpy": ({"step": only_int}, "[{target: PythonActions}]"),
    "a flag that is none": ({"step": step_with(terminated=0)}, "step() gave terminated = 0: return a bool"),
    "a reset that ignores its seed": (
        {"reset": lambda self, **_: Walk.reset(self)},
        "reset(seed=…) twice gave different observations: pass the seed to super().reset(seed=seed)",
    ),
    "steps of another generator": (
        {"move": lambda self, action: np.random.default_rng().normal()},
        "the same actions after the same reset(seed=…) gave something else at step 1: pass the seed",
    ),
}


def test_a_good_environment_passes() -> None:
    check_env(Walk())
    check_env(Corridor(length=3))
    check_env(Goals())


class Hand(Structured):
    """Nested observations and actions; a step takes nothing but an action of the space."""

    def __init__(self) -> None:
        parts = gymnasium.spaces.Dict(
            {"closed": gymnasium.spaces.Discrete(2), "force": gymnasium.spaces.Box(0, 1, (2,))}
        )
        super().__init__(gymnasium.spaces.Dict({"left": parts}), gymnasium.spaces.Dict({"right": parts}))

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return super().reset(**given)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return super().step(action)


def test_a_policy_is_given_leaves_by_path_and_gives_such_leaves() -> None:
    check_env(Hand(), policy=lambda obs: {f"right/{name}": obs[f"left/{name}"] for name in ("closed", "force")})


class Halved(Goals):
    def _obs(self) -> dict[str, Any]:
        return {name: value for name, value in super()._obs().items() if name != "desired_goal"}


class Narrowed(Goals):
    def _obs(self) -> dict[str, Any]:
        return {name: value.astype(np.float32) for name, value in super()._obs().items()}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Halved(), "reset() gave an observation with other parts than the observation space"),
        (Narrowed(), "reset() gave an observation achieved_goal of float32, its space wants float64"),
    ],
)
def test_a_structured_observation_is_checked_part_by_part(env: Goals, message: str) -> None:
    with fails_saying(message):
        check_env(env)


@pytest.mark.parametrize("what", BROKEN_ENVS)
def test_an_environment_is_refused_that_has(what: str) -> None:
    attributes, message = BROKEN_ENVS[what]
    with fails_saying(message):
        check_env(broken(Walk, attributes)())


def test_an_object_of_another_class_is_no_environment() -> None:
    with fails_saying("expected a gymnasium.Env or VectorEnv, found SameColumns"):
        check_env(SameColumns())


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_good_vector_environment_passes(mode: AutoresetMode) -> None:
    check_env(SyncVectorEnv([Walk, Walk], autoreset_mode=mode))


class Undeclared(SyncVectorEnv):
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.metadata = {}


class Hiding(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = super().step(actions)
        infos.pop("final_obs", None)
        return obs, reward, terminated, truncated, infos


class Endless(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        return (*super().step(actions)[:2], np.zeros(2, bool), np.zeros(2, bool), {})


@pytest.mark.parametrize(
    ("make", "mode", "message"),
    [
        (Undeclared, "SameStep", "metadata has no 'autoreset_mode'"),
        (Hiding, "SameStep", "infos['final_obs'] is expected"),
        (Endless, "NextStep", "no lane began another episode in 300 steps: play more steps="),
    ],
)
def test_a_vector_environment_that_breaks_its_word_is_refused(make: Any, mode: str, message: str) -> None:
    with fails_saying(message):
        check_env(make([Walk, Walk], autoreset_mode=mode))
