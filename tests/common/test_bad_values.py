from __future__ import annotations

import numpy as np
import pytest

from common.bad_values import KEEP_ALL, REFUSE_ALL, RefuseAll, first_extreme, first_outside, is_extreme
from common.data import Column
from common.domain import Domain
from common.errors import RefusedError

BOUNDED = Column("action", "<i8", (2,), domain=Domain.between([0, 0], [1, 5], np.int64))
VALUES = np.array([1, 5, 0, 6, 2, 0])
"""Three rows, of which the second and the third hold a value outside."""


@pytest.mark.parametrize(("value", "text"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_the_first_value_that_is_not_finite_is_named_with_its_row(value: float, text: str) -> None:
    values = np.array([0, 1, 2, value, np.nan, 3])
    assert str(first_extreme("obs", values, 3)) == f"column 'obs': expected finite values, found {text} in row 1"


@pytest.mark.filterwarnings("error")
def test_a_signalling_nan_is_found_as_any_other() -> None:
    values = np.array([0x3F800000, 0x7F800001], np.uint32).view(np.float32)
    assert is_extreme(values, 10.0).tolist() == [False, True]


def test_the_first_value_outside_is_named_with_the_bounds_of_its_element() -> None:
    bad = first_outside(BOUNDED, VALUES, 3)
    assert str(bad) == "column 'action': expected 0 to 5, found 6 in row 1"
    assert bad.at("item 7") == "column 'action': expected 0 to 5, found 6 in item 7"


def test_refuse_all_refuses_with_the_reason_and_the_value() -> None:
    with pytest.raises(RefusedError, match="column 'obs': expected finite values, found nan in row 0") as nonfinite:
        REFUSE_ALL.handle_extreme("obs", np.array([np.nan]), 1)
    with pytest.raises(RefusedError, match="column 'action': expected 0 to 5, found 6 in row 1") as outside:
        REFUSE_ALL.handle_outside(BOUNDED, VALUES, 3)
    assert (nonfinite.value.reason, outside.value.reason) == ("values", "bounds")
    assert outside.value.bad == first_outside(BOUNDED, VALUES, 3)


def test_refuse_all_may_have_a_largest_value() -> None:
    rules = RefuseAll(10.0)
    assert rules.largest_of("obs") == 10.0
    with pytest.raises(RefusedError, match=r"column 'obs': expected values from -10 to 10, found -11.0 in row 0"):
        rules.handle_extreme("obs", np.array([10.0, -11.0]), 1)


def test_keep_all_keeps_every_value() -> None:
    values = np.array([np.nan, np.inf])
    assert KEEP_ALL.handle_extreme("obs", values, 1) is values
    KEEP_ALL.handle_outside(BOUNDED, VALUES, 3)
    assert VALUES.tolist() == [1, 5, 0, 6, 2, 0]
