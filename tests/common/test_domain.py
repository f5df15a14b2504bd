from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data import Array
from common.domain import TILE, Domain

FLOAT_MAX = float(np.finfo(np.float32).max)
INT_MAX = int(np.iinfo(np.int64).max)


def between(low: Any, high: Any, dtype: Any = np.float32) -> Domain:
    made = Domain.between(low, high, dtype)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (-np.inf, np.inf, np.float32),
        (-FLOAT_MAX, FLOAT_MAX, np.float32),
        (0, 255, np.uint8),
        (-INT_MAX - 1, INT_MAX, np.int64),
        (False, True, np.bool_),
        (False, False, np.bool_),
        (np.zeros(0), np.zeros(0), np.float32),
    ],
)
def test_bounds_that_exclude_nothing_are_no_domain(low: Any, high: Any, dtype: Any) -> None:
    assert Domain.between(low, high, dtype) is None


def test_integers_are_compared_exactly() -> None:
    actions = between(0, 1, np.int64)
    assert actions.holds(np.array([0, 1, 1]))
    assert not actions.holds(np.array([0, 2, 1]))
    assert not actions.holds(np.array([0, -1, 1]))
    assert between(-2, 2**62, np.int64).holds(np.array([2**62, -2]))
    assert not between(-2, 2**62, np.int64).holds(np.array([2**62 + 1]))


def test_floats_may_pass_a_bound_by_a_few_roundings() -> None:
    thrust = between(-2, 2)
    rounded = np.float32(2)
    for _ in range(20):
        rounded = np.nextafter(rounded, np.float32(3))
    assert thrust.holds(np.array([-rounded, rounded]))
    assert not thrust.holds(np.array([2.001], np.float32))
    assert between(0, np.inf).holds(np.array([0, 1e38], np.float32))
    assert not between(0, np.inf).holds(np.array([-1e-30], np.float32)), "0 has no roundings"


def test_each_element_of_a_row_may_have_bounds_of_its_own() -> None:
    joint = between([0, -5], [2, 5], np.int64)
    assert joint.holds(np.array([2, -5, 0, 5]))
    assert not joint.holds(np.array([2, -5, 3, 5]))
    assert joint.outside(np.array([2, -5, 3, 5, 0, 6])).tolist() == [False, False, True, False, False, True]
    assert [joint.text(element) for element in range(4)] == ["0 to 2", "-5 to 5", "0 to 2", "-5 to 5"]
    assert str(joint) == "bounds for each of 2 elements"


def test_bounds_with_one_infinite_side_are_described_by_the_other() -> None:
    assert str(between(0, np.inf)) == "at least 0"
    assert str(between(-np.inf, 1.5)) == "at most 1.5"
    assert str(between(0, 12_345_678, np.int64)) == "0 to 12345678"


@given(st.integers(1, 5), st.integers(1, 3 * TILE), st.integers(0, 2**32 - 1), st.sampled_from(["<f4", "<i8", "|u1"]))
def test_the_quick_comparison_agrees_with_the_thorough_one_for_any_number_of_rows(
    k: int, rows: int, seed: int, dtype: str
) -> None:
    rng = np.random.default_rng(seed)
    domain = between(np.arange(k), np.arange(k) + 100, dtype)
    values: Array = (rng.random((rows, k)) * 100 + np.arange(k)).astype(dtype)
    assert domain.holds(values.reshape(-1))
    assert not domain.outside(values.reshape(-1)).any()
    row, element = rng.integers(rows), rng.integers(k)
    values[row, element] = element + 101 if k == 1 or rng.random() < 0.5 else (element - 1 if element else 101)
    assert not domain.holds(values.reshape(-1))
    assert np.flatnonzero(domain.outside(values.reshape(-1))).tolist() == [row * k + element]


@pytest.mark.parametrize(
    "domain", [between(0, 1, np.int64), between([-4.8, -np.inf], [4.8, np.inf]), between(0, np.inf)]
)
def test_a_domain_survives_standard_json(domain: Domain) -> None:
    text = json.dumps(domain.to_json(), allow_nan=False)
    back = Domain.from_json(json.loads(text), domain.low.dtype)
    np.testing.assert_array_equal(back.low, domain.low)
    np.testing.assert_array_equal(back.high, domain.high)


def test_several_columns_share_a_domain_only_if_it_is_the_same_for_every_element() -> None:
    binary, other, joint = between(0, 1, np.uint8), between(0, 2, np.uint8), between([0, 0], [1, 2], np.uint8)
    assert Domain.shared([binary, between(0, 1, np.uint8)]) is binary
    for domains in ([binary, other], [binary, None], [None, binary], [joint, joint]):
        assert Domain.shared(domains) is None
