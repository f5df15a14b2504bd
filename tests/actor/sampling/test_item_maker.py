"""A user's own step processors see the steps of their lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import Autoreset

from common.data import Array, Column, Items, Schema
from common.interfaces import EnvSpec, Step
from common.lanes.building import Env
from tests.actor.acting import (
    Acts,
    act,
    env_config,
    limited,
    make_parts,
    together,
)
from tests.parts import CountingEnv

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
