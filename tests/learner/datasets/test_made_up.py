from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from common.config.actor_config import ActorConfig
from common.data import Array, Column, Items
from common.errors import PluginError
from common.parts import Parts, build_parts
from common.settings import validate
from learner.datasets.made_up import LENGTHS, _sample_leaf, make_up_episodes
from tests.parts import CheckingAgent

CARTPOLE: dict[str, Any] = {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}}


def build(env: dict[str, Any] | None = None, agent: str = "common.agents.dqn:DQN", **changes: Any) -> Parts:
    return build_parts(validate(ActorConfig, {"env": env or CARTPOLE, "agent": {"target": agent}, **changes}), seed=0)


def make_up(parts: Parts, reach: int = 1, rows: int = 200) -> list[Items]:
    return list(make_up_episodes(parts, parts.agent, reach, rows))


def test_episodes_are_whole_and_have_all_columns() -> None:
    parts = build()
    for episode in make_up(parts):
        n = parts.schema.count(episode)
        assert np.flatnonzero(episode["first"]).tolist() == [0]
        assert np.flatnonzero(episode["final"]).tolist() == [n - 1]
        assert np.flatnonzero(episode["terminated"] | episode["truncated"]).tolist() == [n - 2]


def test_there_are_as_many_rows_as_are_asked_for_and_draws_that_end_early() -> None:
    lengths = [len(episode["reward"]) - 1 for episode in make_up(build(), reach=80, rows=400)]
    assert sum(lengths) + len(lengths) >= 400
    assert min(lengths) == min(LENGTHS)
    assert max(lengths) > 80


def test_values_are_in_their_spaces_and_always_the_same() -> None:
    parts = build({"target": "tests.parts:Goals"})
    for one, other in zip(make_up(parts), make_up(parts), strict=True):
        for column in parts.schema.columns:
            assert np.array_equal(one[column.name], other[column.name])
            assert column.domain is None or (np.abs(one[column.name]) <= 2).all()


def test_bounds_as_far_as_floats_reach_give_small_values() -> None:
    obs = np.concatenate([episode["obs"] for episode in make_up(build())])
    assert np.abs(obs).max() <= 10, "CartPole's velocities have no bounds"


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (0, np.iinfo(np.int64).max, np.int64),
        (np.iinfo(np.int64).min, np.iinfo(np.int64).max, np.int64),
        (0, 2**63, np.uint64),
        (0, np.iinfo(np.uint64).max, np.uint64),
        (0, np.iinfo(np.uint32).max, np.uint32),
        (-128, 127, np.int8),
        (1000, 1009, np.int64),
        (2**40, 2**40 + 1, np.int64),
        (0, np.inf, np.int64),
        (-np.inf, np.inf, np.int32),
    ],
)
def test_whole_numbers_are_drawn_whatever_their_bounds_and_without_bounds_they_are_small(
    low: float, high: float, dtype: type
) -> None:
    space = gymnasium.spaces.Box(low, high, (3,), dtype)
    found = _sample_leaf(space, 0)
    assert found.dtype == dtype
    assert all(low <= value <= high for value in found.reshape(-1).tolist())
    assert len(np.unique(found)) > 1
    if high in (np.inf, 2**63, np.iinfo(np.int64).max, np.iinfo(np.uint64).max):
        assert np.abs(found).max() < 100


def test_the_environments_own_spaces_draw_as_before() -> None:
    parts = build()
    space = parts.frames.action_space
    space.seed(3)
    expected = [space.sample() for _ in range(20)]
    space.seed(3)
    make_up(parts)
    assert [space.sample() for _ in range(20)] == expected


def test_what_the_agent_records_beside_its_actions_comes_from_the_agent() -> None:
    env = {
        "target": "gymnasium:make",
        "params": {"id": "CartPole-v1"},
        "wrappers": [{"target": "common.envs.memory_tasks:KeepElements", "params": {"elements": [0, 2]}}],
    }
    parts = build(env, "examples.recurrent_agent:LstmDqn")
    assert make_up(parts)[0]["state"].shape[1:] == (2, 64)


@pytest.mark.parametrize("stack", [1, 3])
def test_a_step_processor_is_given_the_observations_that_the_agent_sees(stack: int) -> None:
    processor = {"target": "tests.learner.loop.test_offline:Twice"}
    parts = build({**CARTPOLE, "frame_stack": stack}, step_processor=processor)
    shape = (4,) if stack == 1 else (stack, 4)
    assert make_up(parts)[0]["obs"].shape[1:] == shape


class Extras(CheckingAgent):
    """Declares an extra column ``x`` of two floats, and gives what it was built with."""

    def __init__(self, *args: Any, given: Items, **kwargs: Any) -> None:
        super().__init__(*args, in_turns=True, **kwargs)
        self._given = given

    def sample(self, obs: Array) -> Array:
        return np.zeros(len(obs), np.int64)

    def extra_columns(self) -> list[Column]:
        return [Column.of("x", np.float32, (2,))]

    def extras(self) -> Items:
        return self._given


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, r"object \[\]"),
        ({"x": np.zeros((1, 2))}, r"float64 \[1, 2\]"),
        ({"x": np.zeros((32, 3))}, r"float64 \[32, 3\]"),
        ({"x": np.full((32, 2), "a")}, r"<U1 \[32, 2\]"),
    ],
)
def test_extras_that_are_not_as_declared_are_named(given: Items, found: str) -> None:
    parts = build()
    agent = Extras(parts.spec, seed=0, epsilon=0.0, device="cpu", given=given)
    with pytest.raises(PluginError, match=rf"agent\.extras: 'x' of 32 .*: expected float32 \[32, 2\], found {found}"):
        list(make_up_episodes(parts, agent, 1, 10))
