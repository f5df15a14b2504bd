"""An environment is played as an actor plays it, and items are kept as a replay keeps them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from common.interfaces import Step
from crossborder.testing import ItemMemory, items_of, play
from crossborder.testing.play import check_record, explaining
from examples.own_parts import Corridor
from tests.crossborder.testing.test_processor_checks import Transitions
from tests.parts import Goals


def test_episodes_end_where_the_environment_ends_them_and_the_last_may_be_open() -> None:
    episodes = play(Corridor(length=2), 7, policy=lambda _: 1)
    assert [len(episode) for episode in episodes] == [2, 2, 2, 1]
    assert [step.terminated for episode in episodes for step in episode] == [False, True] * 3 + [False]
    assert [np.asarray(step.obs).tolist() for step in episodes[1]] == [[0], [1]]
    assert [np.asarray(step.next_obs).tolist() for step in episodes[1]] == [[1], [2]]


def test_structured_observations_are_played_as_they_would_be_recorded() -> None:
    asked = []

    def choose(obs: Any) -> Any:
        asked.append(obs)
        return np.int64(1)

    ((step, *_), *_) = play(Goals(), 5, policy=choose)
    assert isinstance(step.obs, dict)
    assert {leaf.dtype for leaf in step.obs.values()} == {np.dtype(np.float32)}
    assert asked[0] is step.obs
    assert isinstance(step.next_obs, dict)
    assert step.next_obs["observation"].tolist() == [1.0]


def test_the_same_seed_plays_the_same_actions() -> None:
    first, again, other = (
        [int(step.action) for episode in play(Corridor(), 50, seed=seed) for step in episode] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_items_of_all_episodes_are_joined_column_by_column() -> None:
    episodes = play(Corridor(length=2), 6, policy=lambda _: 1)
    items = items_of(Transitions(), episodes)
    assert items["obs"].tolist() == [[0], [1]] * 3
    assert items["next_obs"].tolist() == [[1], [2]] * 3


def test_a_processor_that_gives_no_item_gives_no_columns() -> None:
    class Never(Transitions):
        def process(self, step: Step) -> None: ...

    assert items_of(Never(), [play(Corridor(), 3)[0]]) == {}


def test_a_memory_draws_whole_rows_with_replacement_and_counts_them() -> None:
    memory = ItemMemory({"a": np.arange(3), "b": 10 * np.arange(3)})
    batch = memory.batch(100)
    assert set(batch["a"].tolist()) == {0, 1, 2}
    assert np.array_equal(batch["b"], 10 * batch["a"])
    assert (len(memory), memory.inserted, memory.sampled) == (3, 3, 100)


def test_nothing_can_be_drawn_from_an_empty_memory() -> None:
    with pytest.raises(IndexError, match="nothing to draw from"):
        ItemMemory({"a": np.arange(0)}).batch(1)


def test_an_error_is_explained_and_stays_visible() -> None:
    with pytest.raises(AssertionError, match=r"^say how \(ValueError: too much\)$"), explaining("say how"):
        raise ValueError("too much")


@pytest.mark.parametrize(
    ("value", "message"),
    [("x", "a: expected a number, found 'x'"), (math.nan, "a: expected a finite number, found nan")],
)
def test_a_record_of_other_values_than_finite_numbers_is_refused(value: object, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_record({"a": value}, "opt()", ())  # type: ignore[dict-item]
