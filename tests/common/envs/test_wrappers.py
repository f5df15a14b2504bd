from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from common.data import Array
from common.envs.wrappers import PythonActions, discounted_return
from common.errors import ConfigError
from common.lanes.building import build_lanes
from common.lanes.vector_lanes import VectorLanes, is_vector
from common.plugins.part_config import EnvConfig
from common.settings import validate

GAMMA = 0.9


class Countdown(gymnasium.Env[Array, Any]):
    """Episodes of 2, 3, 4, 2, 3, 4… steps, whose k-th step pays k; lane and episode decide where they begin."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, first: int = 0) -> None:
        self.episode, self.k = first - 1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.k = self.episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.k += 1
        ends = self.k == 2 + self.episode % 3
        return np.zeros(1, np.float32), float(self.k), ends and self.episode % 2 == 0, ends, {}


def expected(first: int) -> Iterator[float]:
    """The returns so far of one lane, written out."""
    episode = first
    while True:
        total = 0.0
        for k in range(1, 3 + episode % 3):
            total = k + GAMMA * total
            yield total
        episode += 1


def make(mode: str, n: int = 3) -> Any:
    """A plain environment, or a vector environment in a mode of autoreset."""
    if mode == "plain":
        return Countdown()
    made = [lambda first=first: Countdown(first) for first in range(n)]
    return SyncVectorEnv(made, autoreset_mode=AutoresetMode(mode))


MODES = ["plain", *(mode.value for mode in AutoresetMode)]


@pytest.mark.parametrize("mode", MODES)
def test_each_row_has_the_return_of_its_episode_so_far(mode: str) -> None:
    config = validate(
        EnvConfig,
        {
            "target": "tests.common.envs.test_wrappers:make",
            "params": {"mode": mode},
            "wrappers": [{"target": "common.envs.wrappers:discounted_return", "params": {"discount_factor": GAMMA}}],
            "info": {"discounted_return": "float32"},
        },
    )
    lanes = build_lanes(config, 1)
    assert isinstance(lanes, VectorLanes) == (mode != "plain")
    lanes.reset(0)
    slow = [expected(first) for first in range(lanes.n)]
    for _ in range(30):
        lanes.observe()
        outcome = lanes.step(np.zeros(lanes.n, np.int64))
        taken = np.ones(lanes.n, bool) if outcome.taken is None else outcome.taken
        for lane in np.flatnonzero(taken):
            assert outcome.info["discounted_return"][lane] == pytest.approx(next(slow[lane]))
    lanes.close()


@pytest.mark.parametrize("mode", MODES)
def test_nothing_else_of_the_environment_changes(mode: str) -> None:
    plain, wrapped = make(mode), discounted_return(make(mode), GAMMA)
    assert is_vector(wrapped) == is_vector(plain)
    assert wrapped.metadata == plain.metadata
    assert wrapped.observation_space == plain.observation_space
    for env in (plain, wrapped):
        env.reset(seed=1)
    actions = np.zeros(3, np.int64) if is_vector(plain) else 0
    for _ in range(2):
        for one, other in zip(plain.step(actions)[:4], wrapped.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("factor", [-0.1, 1.1, np.nan])
def test_a_discount_factor_out_of_range_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match=f"expected a discount_factor from 0 to 1, found {factor}"):
        discounted_return(make(AutoresetMode.DISABLED.value), factor)


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_goes_on_with_the_same_returns(mode: str) -> None:
    env = discounted_return(make(mode), GAMMA)
    env.reset(seed=1)
    actions = np.zeros(3, np.int64) if is_vector(env) else 0
    env.step(actions)
    copied = copy.deepcopy(env)
    found = [each.step(actions)[4]["discounted_return"] for each in (env, copied)]
    np.testing.assert_array_equal(*found)


def test_a_reset_of_some_lanes_begins_the_return_anew_there_alone() -> None:
    env = discounted_return(make(AutoresetMode.DISABLED.value), GAMMA)
    env.reset(seed=0)
    env.step(np.zeros(3, np.int64))
    env.reset(options={"reset_mask": np.array([False, True, False])})
    found = env.step(np.zeros(3, np.int64))[4]["discounted_return"]
    assert found.tolist() == pytest.approx([2 + GAMMA, 1.0, 2 + GAMMA])


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (np.int64(1), 1),
        (np.array([0.5, 1.0]), [0.5, 1.0]),
        ({"arm": (np.int64(1), np.array([2]))}, {"arm": (1, [2])}),
    ],
)
def test_an_environment_can_get_actions_of_pythons_own_types(action: Any, expected: Any) -> None:
    class Json(gymnasium.Env[Any, Any]):
        sent = ""

        def step(self, action: Any) -> Any:
            self.sent = json.dumps(action)
            return None, 0.0, False, False, {}

    env = Json()
    PythonActions(env).step(action)
    assert env.sent == json.dumps(expected)
