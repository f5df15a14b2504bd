from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data import Array
from learner.replay.sum_tree import FAN, TOP, MinTree, SumTree

SIZES = [1, 2, 100, TOP, TOP + 1, FAN * TOP + 5]  # A row; two levels, also with a ragged end; three.
VALUES = st.floats(0, 1e6).filter(lambda value: value == 0 or value > 1e-6)
seeds = st.integers(0, 2**32 - 1)


def filled(size: int, values: Array) -> SumTree:
    tree = SumTree(size)
    tree.set(np.arange(size), values)
    return tree


def slow_find(values: Array, shares: Array) -> Array:
    """What the tree is for, in one line over all slots."""
    slots: Array = np.cumsum(values).searchsorted(shares * values.sum(), side="right")
    return slots


@pytest.mark.parametrize("size", SIZES)
def test_slots_are_found_where_the_running_sum_passes_their_share(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.integers(0, 4, size).astype(np.float64)  # Whole numbers add up exactly, in any order.
    values[rng.integers(size)] = 1.0
    shares = rng.random(1000)
    np.testing.assert_array_equal(filled(size, values).find(shares), slow_find(values, shares))


@given(st.sampled_from(SIZES), st.lists(st.tuples(seeds, st.integers(1, 50)), min_size=1, max_size=5), seeds)
def test_after_any_changes_it_is_the_tree_of_the_values_as_they_are(
    size: int, changes: list[tuple[int, int]], draw: int
) -> None:
    sums, minima, values = SumTree(size), MinTree(size), np.zeros(size)
    values[0] = 1.0
    sums.set(np.array([0]), 1.0)
    minima.set(np.array([0]), 1.0)
    for seed, n in changes:
        rng = np.random.default_rng(seed)
        slots = np.unique(rng.integers(size, size=n))
        rng.shuffle(slots)
        values[slots] = rng.integers(1, 9, len(slots))
        sums.set(slots, values[slots])
        minima.set(slots, values[slots])
    shares = np.random.default_rng(draw).random(20)
    np.testing.assert_array_equal(sums.find(shares), slow_find(values, shares))
    np.testing.assert_array_equal(sums.values, values)
    assert minima.find_least() == values[values > 0].min()


@given(st.lists(VALUES, min_size=1, max_size=60).filter(any), st.sampled_from([60, TOP + 60]), seeds)
def test_a_slot_of_value_0_is_never_found_whatever_rounding_does(values: list[float], size: int, seed: int) -> None:
    everywhere = np.zeros(size)
    places = np.random.default_rng(seed).choice(size, len(values), replace=False)
    everywhere[places] = values
    borders = everywhere[places].cumsum() / everywhere.sum(), everywhere.cumsum() / everywhere.sum()
    on = np.concatenate([[0.0, 1.0], *borders])
    shares = np.concatenate([on, np.nextafter(on, 0), np.nextafter(on, 1)]).clip(0, 1)
    assert (everywhere[filled(size, everywhere).find(shares)] > 0).all()


def test_a_slot_that_is_cleared_counts_no_more() -> None:
    sums, minima = SumTree(10), MinTree(10)
    for tree in (sums, minima):
        tree.set(np.arange(3), np.array([1.0, 2.0, 3.0]))
        tree.clear(np.array([0]))
    assert sums.find(np.array([0.0, 0.39, 0.41])).tolist() == [1, 1, 2]
    assert minima.find_least() == 2.0


def test_without_values_there_is_no_least() -> None:
    assert MinTree(10).find_least() == math.inf


def test_the_last_value_of_a_slot_named_twice_counts_and_no_slots_change_nothing() -> None:
    sums = SumTree(4)
    sums.set(np.array([2, 1, 2]), np.array([9.0, 1.0, 3.0]))
    sums.set(np.array([], np.int64), np.array([]))
    assert sums.values.tolist() == [0.0, 1.0, 3.0, 0.0]
    assert sums.find(np.array([0.24, 0.26])).tolist() == [1, 2]


def test_a_million_changes_leave_no_rounding_behind() -> None:
    """Border's tree adds differences; what they leave behind is drawn from."""
    size, rng = TOP + 100, np.random.default_rng(0)
    sums = SumTree(size)
    for _ in range(1000):
        sums.set(rng.integers(size, size=1000), rng.random(1000) * 1e6)
    sums.clear(np.arange(size))
    sums.set(np.array([7]), 1e-6)
    assert sums.find(rng.random(100)).tolist() == [7] * 100
