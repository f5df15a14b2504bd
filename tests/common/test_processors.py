from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data import Array, Column, Items
from common.errors import ConfigError, SchemaMismatchError
from common.interfaces import EnvSpec, Step
from common.processors import NStep, OneStep, is_one_step, transitions
from common.testing import items_of
from examples.own_processor import ScaledReward

SPEC = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(3))
STEP = Step(
    np.array([0.25, 0.5], np.float32), np.int64(2), 1.5, np.array([0.75, 1.0], np.float32), True, truncated=False
)


def test_the_columns_are_those_of_a_transition() -> None:
    assert OneStep().schema(SPEC).columns == (
        Column("obs", "<f4", (2,)),
        Column("action", "<i8"),
        Column("reward", "<f4"),
        Column("next_obs", "<f4", (2,)),
        Column("terminated", "|b1"),
        Column("truncated", "|b1"),
    )


def test_one_step_becomes_one_item_that_fits_the_schema() -> None:
    items = OneStep().process(STEP)
    assert OneStep().schema(SPEC).count(items) == 1
    assert {name: column[0].tolist() for name, column in items.items()} == {
        "obs": [0.25, 0.5],
        "action": 2,
        "reward": 1.5,
        "next_obs": [0.75, 1.0],
        "terminated": True,
        "truncated": False,
    }


@pytest.mark.parametrize(("terminated", "truncated"), [(False, False), (True, False), (False, True), (True, True)])
def test_terminated_and_truncated_are_kept_apart(terminated: bool, truncated: bool) -> None:
    items = OneStep().process(Step(STEP.obs, STEP.action, 0.0, STEP.next_obs, terminated, truncated))
    assert (items["terminated"][0], items["truncated"][0]) == (terminated, truncated)


def test_actions_with_a_shape_keep_it() -> None:
    space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    step = Step(STEP.obs, np.array([1, 2, 3], np.float32), 0.0, STEP.next_obs, terminated=False, truncated=False)
    items = OneStep().process(step)
    assert OneStep().schema(EnvSpec(SPEC.observation_space, space)).count(items) == 1
    assert items["action"].tolist() == [[1, 2, 3]]


# Steps of one round.

ROUNDS: dict[str, Step] = {
    "numbers": STEP,
    "vectors": Step(STEP.obs, np.array([1, 2, 3], np.float32), 0.1, STEP.next_obs, terminated=False, truncated=True),
    "frames": Step(np.ones((4, 8, 8), np.uint8), np.uint8(3), -1.0, np.zeros((4, 8, 8), np.uint8), False, False),
    "scalars": Step(np.array(1, np.int32), 2, 0.0, np.array(3, np.int32), terminated=True, truncated=False),
}


@pytest.mark.parametrize("step", ROUNDS.values(), ids=ROUNDS)
def test_many_steps_at_once_make_the_items_of_one_after_another(step: Step) -> None:
    steps = [replace(step, reward=0.1 * i, terminated=i == 2, obs=step.obs + i) for i in range(5)]
    at_once, in_turn = transitions(steps), items_of(OneStep(), [steps])
    assert list(at_once) == list(in_turn)
    for name, column in in_turn.items():
        assert at_once[name].dtype == column.dtype
        np.testing.assert_array_equal(at_once[name], column, strict=True)


def test_steps_of_different_shapes_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match=r"expected one shape each in all steps, found \[.*\(3,\)"):
        transitions([STEP, replace(STEP, next_obs=np.zeros(3, np.float32))])


def test_a_subclass_of_one_step_with_its_own_process_is_no_one_step() -> None:
    class Renamed(OneStep):
        """The same."""

    assert is_one_step(OneStep())
    assert is_one_step(Renamed())
    assert not is_one_step(ScaledReward())
    assert not is_one_step(NStep(1))


# Several steps.


def episode(rewards: list[float], *, terminated: bool = False, truncated: bool = False) -> list[Step]:
    """Step i goes from observation [i, i] to [i + 1, i + 1] by action i mod 3; the last has the end that is given."""
    last = len(rewards) - 1
    return [
        Step(
            np.full(2, i, np.float32),
            i % 3,
            r,
            np.full(2, i + 1, np.float32),
            terminated and i == last,
            truncated and i == last,
        )
        for i, r in enumerate(rewards)
    ]


def slow(steps: list[Step], n: int, gamma: float) -> Items:
    """The formula, item by item, for an episode that has ended."""
    rows: list[tuple[Array, int, float, Array, bool, bool, float]] = []
    for i in range(len(steps)):
        ahead = steps[i : i + n]
        reward = sum(gamma**k * step.reward for k, step in enumerate(ahead))
        end = ahead[-1]
        rows.append(
            (steps[i].obs, steps[i].action, reward, end.next_obs, end.terminated, end.truncated, gamma ** len(ahead))
        )
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "discount")
    return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def test_several_steps_have_the_columns_of_one_and_a_discount() -> None:
    assert NStep().schema(SPEC).columns == (*OneStep().schema(SPEC).columns, Column("discount", "<f4"))


@given(
    rewards=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=12),
    n=st.integers(1, 6),
    gamma=st.floats(0, 1),
    terminated=st.booleans(),
)
def test_rewards_are_folded_as_by_the_slow_formula(
    rewards: list[float], n: int, gamma: float, terminated: bool
) -> None:
    steps = episode(rewards, terminated=terminated, truncated=not terminated)
    found, expected = items_of(NStep(n, gamma), [steps]), slow(steps, n, gamma)
    assert NStep(n, gamma).schema(SPEC).count(found) == len(steps)
    for name, column in expected.items():
        np.testing.assert_allclose(found[name], column, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_transition_of_three_steps_by_hand() -> None:
    processor, steps = NStep(3, 0.5), episode([1.0, 2.0, 4.0, 8.0])
    assert [processor.process(step) for step in steps[:2]] == [None, None]
    first, second = (processor.process(step) for step in steps[2:])
    assert first is not None
    assert second is not None
    assert {name: column.tolist() for name, column in first.items()} == {
        "obs": [[0.0, 0.0]],
        "action": [0],
        "reward": [1 + 0.5 * 2 + 0.25 * 4],
        "next_obs": [[3.0, 3.0]],
        "terminated": [False],
        "truncated": [False],
        "discount": [0.125],
    }
    assert (second["obs"][0, 0], second["reward"][0], second["next_obs"][0, 0]) == (1.0, 2 + 0.5 * 4 + 0.25 * 8, 4.0)


@pytest.mark.parametrize(("terminated", "truncated"), [(True, False), (False, True), (True, True)])
def test_the_last_steps_of_an_episode_give_items_over_fewer_steps(terminated: bool, truncated: bool) -> None:
    items = items_of(NStep(3, 0.5), [episode([1.0, 2.0, 4.0, 8.0], terminated=terminated, truncated=truncated)])
    assert items["reward"].tolist() == [3.0, 6.0, 8.0, 8.0]
    assert items["discount"].tolist() == [0.125, 0.125, 0.25, 0.5]
    assert items["next_obs"][:, 0].tolist() == [3.0, 4.0, 4.0, 4.0]
    assert items["terminated"].tolist() == [False, *[terminated] * 3]
    assert items["truncated"].tolist() == [False, *[truncated] * 3]


def test_no_step_of_an_episode_is_left_for_the_next() -> None:
    processor = NStep(3, 0.5)
    for step in episode([1.0, 1.0]):
        assert processor.process(step) is None
    processor.reset()
    items = items_of(processor, [episode([5.0], truncated=True)])
    assert items["reward"].tolist() == [5.0]


def test_nstep_with_n_1_makes_the_transitions_of_one_step() -> None:
    steps = episode([1.0, 2.0], terminated=True)
    one, several = items_of(OneStep(), [steps]), items_of(NStep(1, 0.5), [steps])
    assert several.pop("discount").tolist() == [0.5, 0.5]
    assert {name: column.tolist() for name, column in several.items()} == {n: c.tolist() for n, c in one.items()}


@pytest.mark.parametrize(("n", "gamma"), [(0, 0.9), (1, 1.1), (1, -0.1), (1, float("nan"))])
def test_no_steps_and_no_discount_are_refused(n: int, gamma: float) -> None:
    with pytest.raises(ConfigError, match="expected n >= 1 and 0 <= discount_factor <= 1"):
        NStep(n, gamma)
