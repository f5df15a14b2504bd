"""A user's own step processors see the steps of their lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import Autoreset

from actor.sampling.item_maker import next_of
from common.data import Array, Column, Items, Leaves, Schema
from common.interfaces import EnvSpec, Step
from common.lanes.building import Env
from common.lanes.lanes import Round
from common.lanes.stacking import Stacker
from tests.actor.acting import (
    Acts,
    KeptBatches,
    act,
    env_config,
    limited,
    make_parts,
    together,
)
from tests.parts import CountingEnv, Goals

Wrap = Callable[[Env], Env]
BARE_AND_AUTORESET = pytest.mark.parametrize("wrap", [lambda env: env, Autoreset], ids=["bare", "autoreset"])


class Pairs:
    """Two steps of one episode make an item; a single one at the end of an episode makes none."""

    def __init__(self) -> None:
        self._first: Step | None = None

    def schema(self, spec: EnvSpec) -> Schema:
        return Schema((Column("episodes", "<f4", (2,)), Column("steps", "<f4", (2,))))

    def reset(self) -> None:
        self._first = None

    def process(self, step: Step) -> Items | None:
        assert isinstance(step.obs, np.ndarray)
        if self._first is None:
            self._first = step
            return None
        first, self._first = self._first, None
        assert isinstance(first.obs, np.ndarray)
        return {
            "episodes": np.array([[first.obs[2], step.obs[2]]]),
            "steps": np.array([[first.obs[1], step.obs[1]]]),
        }


@BARE_AND_AUTORESET
def test_the_memory_of_a_step_processor_never_crosses_an_episode(wrap: Wrap) -> None:
    sink, counters = act(make_parts([wrap(CountingEnv())], processors=[Pairs()]), 60)
    episodes, steps = sink.column("episodes"), sink.column("steps")
    np.testing.assert_array_equal(episodes[:, 0], episodes[:, 1])
    np.testing.assert_array_equal(steps[:, 0] + 1, steps[:, 1])
    assert counters.env_steps == 60
    assert 20 < len(sink.pushed) <= 30


def test_a_step_that_makes_no_item_pushes_nothing_but_counts() -> None:
    sink, counters = act(make_parts([CountingEnv()], processors=[Pairs()]), 1)
    assert sink.pushed == []
    assert counters.env_steps == 1


class Transitions:
    """Each step as an item."""

    def schema(self, spec: EnvSpec) -> Schema:
        shape = spec.observation_space.shape or ()
        obs = [Column.of(name, np.float32, shape) for name in ("obs", "next_obs")]
        return Schema((*obs, Column.of("action", np.int64), Column.of("done", np.bool_)))

    def reset(self) -> None: ...

    def process(self, step: Step) -> Items:
        pairs = {"obs": step.obs, "next_obs": step.next_obs, "action": step.action}
        return {
            **{name: np.asarray(value)[None] for name, value in pairs.items()},
            "done": np.array([step.terminated or step.truncated]),
        }


class Reusing(Transitions):
    """Gives the same arrays each time."""

    def __init__(self) -> None:
        self._kept: dict[str, Array] = {}

    def process(self, step: Step) -> Items:
        items = super().process(step)
        self._kept = self._kept or {name: column.copy() for name, column in items.items()}
        for name, column in items.items():
            self._kept[name][...] = column
        return self._kept


def test_the_arrays_of_a_step_processor_and_of_an_agent_may_be_used_again() -> None:
    """Items are kept until a batch of them is pushed."""

    def play(processor: Transitions) -> Items:
        chosen = np.zeros(1, np.int64)

        def choose_again(obs: Array) -> Array:
            chosen[:] = (obs[:, 1] + obs[:, 2]) % 3
            return chosen

        parts = make_parts([CountingEnv()], lambda s: Acts(s, choose_again), processors=[processor])
        return act(parts, 30, sink=KeptBatches(8))[0].items()

    expected, found = play(Transitions()), play(Reusing())
    assert len(np.unique(expected["obs"], axis=0)) > 20
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column)


class Moves(gymnasium.Env[Array, Array]):
    """It counts its steps; actions change nothing."""

    observation_space, action_space = (gymnasium.spaces.Box(-1e6, 1e6, (n,), np.float32) for n in (1, 2))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        self._n = 0.0
        return np.array([self._n], np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._n += 1.0
        return np.array([self._n], np.float32), 0.0, False, False, {}


class Delayed:
    """Gives the action of the step before, which it has kept as it was given."""

    def __init__(self) -> None:
        self._before: Step | None = None

    def schema(self, spec: EnvSpec) -> Schema:
        return Schema((Column("obs", "<f4", (1,)), Column("action", "<f4", (2,))))

    def reset(self) -> None:
        self._before = None

    def process(self, step: Step) -> Items | None:
        before, self._before = self._before, step
        return None if before is None else {"obs": np.array([before.obs]), "action": np.array([before.action])}


def test_a_step_that_a_processor_keeps_stays_as_it_was() -> None:
    chosen = np.zeros((1, 2), np.float32)

    def choose_again(obs: Array) -> Array:
        chosen[:] = obs
        return chosen

    items = act(make_parts([Moves()], lambda s: Acts(s, choose_again), processors=[Delayed()]), 30)[0].items()
    np.testing.assert_array_equal(items["action"], np.repeat(items["obs"], 2, axis=1))
    assert len(np.unique(items["obs"])) > 20


@pytest.mark.usefixtures("_same_seeds")
@pytest.mark.parametrize("mode", [None, *AutoresetMode])
@pytest.mark.parametrize("frames", [1, 3])
def test_step_processors_see_the_true_next_observation_as_the_agent_would(
    mode: AutoresetMode | None, frames: int
) -> None:
    envs = limited()
    lanes = together(envs, mode)
    config = env_config(frame_stack=frames)

    def newest(obs: Array) -> Array:
        last = obs if frames == 1 else obs[:, -1]
        actions: Array = ((last[:, 1] + last[:, 2]) % 3).astype(np.int64)
        return actions

    parts = make_parts(lanes, lambda s: Acts(s, newest), config=config, processors=[Transitions() for _ in range(3)])
    items = act(parts, 30)[0].items()
    obs, later = (items[name].reshape(len(items["done"]), frames, 3) for name in ("obs", "next_obs"))
    np.testing.assert_array_equal(later[:, -1], obs[:, -1] + [0, 1, 0])
    np.testing.assert_array_equal(later[:, :-1], obs[:, 1:])
    assert items["done"].sum() > 5


NONE = np.zeros(3, bool)
SPEC = EnvSpec(CountingEnv.observation_space, CountingEnv.action_space)


def rows(*firsts: int) -> Array:
    """Observations that begin with these numbers."""
    return np.array([[first, 0, 0] for first in firsts], np.float32)


def outcome(obs: Leaves, final_obs: Leaves | None = None) -> Round:
    """A round after which the episode of lane 1 has ended, if it has a last observation."""
    ended = None if final_obs is None else np.array([1])
    return Round(np.zeros(3), NONE, NONE, obs, ended=ended, final_obs=final_obs)


def test_the_next_observation_of_an_ended_episode_is_its_last_one() -> None:
    seen = rows(1, 2, 3)
    found = next_of(outcome(seen, rows(9)), Stacker(SPEC, 3, 1))
    np.testing.assert_array_equal(found, rows(1, 9, 3))
    np.testing.assert_array_equal(seen, rows(1, 2, 3), err_msg="the lanes go on with their own")


def test_each_leaf_of_a_structured_observation_is_the_last_one() -> None:
    obs = {path: np.zeros((3, 1), np.float32) for path in Goals.observation_space}
    last = {path: np.full((1, 1), number, np.float32) for number, path in enumerate(obs, start=1)}
    found = next_of(outcome(obs, last), Stacker(SPEC, 3, 1))
    assert isinstance(found, dict)
    assert [found[path][:, 0].tolist() for path in obs] == [[0, number, 0] for number in range(1, len(obs) + 1)]


def test_stacks_end_with_the_last_observation_and_nothing_is_added() -> None:
    stacker = Stacker(SPEC, 3, 2)
    stacker.add(rows(1, 2, 3), np.ones(3, bool))
    for _ in range(2):
        found = next_of(outcome(rows(4, 5, 6), rows(9)), stacker)
        assert isinstance(found, np.ndarray)
        assert found[:, :, 0].tolist() == [[1, 4], [2, 9], [3, 6]]
