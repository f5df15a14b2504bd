"""Values that a column may not hold: extreme values, and values outside its domain.

A float is extreme if it is NaN, infinite, or further from 0 than the rules allow.
"""

from __future__ import annotations

from typing import Final, NoReturn, Protocol

import numpy as np

from common.data import Array, Column
from common.domain import format_value
from common.errors import BadValue, RefusedError

ANY_FINITE: Final = float(np.finfo(np.float64).max)
"""The largest value under rules that allow every finite value."""
LARGEST_VALUE: Final = 1e12
"""A float further from 0 is an accident, such as that of a simulator: as a loss is a square, a few such floats pass the
range of float32, and training diverges."""


def is_extreme(values: Array, largest: float) -> Array:
    """For each float, whether it is NaN, infinite, or further from 0 than ``largest``; bool, shaped as ``values``."""
    with np.errstate(invalid="ignore"):  # A signalling NaN, which a stranger may send, is reported when it is widened.
        found: Array = ~(np.abs(values) <= np.float64(largest))  # No comparison with NaN is true.
    return found


def has_extreme(values: Array, largest: float) -> bool:
    """Whether any of the flat floats is extreme; it allocates nothing, since ingest asks it of every batch."""
    if not len(values):  # With an initial value, reduce would take twice as long for few floats.
        return False
    greatest, least = np.maximum.reduce(values), np.minimum.reduce(values)  # Both pass NaN on.
    return not (float(greatest) <= largest and float(least) >= -largest)


def first_extreme(name: str, values: Array, rows: int, largest: float = ANY_FINITE, advice: str = "") -> BadValue:
    """The first of the flat ``values`` of ``rows`` rows that is extreme; there must be one.

    ``advice`` is for people whose value is finite.
    """
    bad = int(np.flatnonzero(is_extreme(values, largest))[0])
    expected = "finite values"
    if largest < ANY_FINITE and np.isfinite(values[bad]):
        expected = f"values from {-largest:g} to {largest:g}{advice}"
    return BadValue(name, expected, str(values[bad]), bad * rows // len(values))


def first_outside(column: Column, values: Array, rows: int) -> BadValue:
    """The first of the flat ``values`` of ``rows`` rows that is outside the column's domain; there must be one."""
    assert column.domain is not None
    bad = int(np.flatnonzero(column.domain.outside(values))[0])
    return BadValue(column.name, column.domain.text(bad), format_value(values[bad].item()), bad * rows // len(values))


class Rules(Protocol):
    """Decides what happens to values that a column may not hold: replace them, keep them, or refuse the batch."""

    def largest_of(self, name: str) -> float:
        """The largest value that a column of floats may hold, and of which the negative is the least."""

    def handle_extreme(self, name: str, values: Array, rows: int) -> Array:
        """Return the values that replace a column's flat ``values`` of ``rows`` rows, some of which are extreme.

        Raises:
            RefusedError: naming column, value and row.
        """

    def handle_outside(self, column: Column, values: Array, rows: int) -> None:
        """Accept a column's flat ``values`` of ``rows`` rows, some of which are outside its domain, or refuse them.

        Raises:
            RefusedError: naming column, bounds, value and row.
        """


class RefuseAll:
    """The ``Rules`` that refuse every value that a column may not hold, and floats further from 0 than ``largest``."""

    def __init__(self, largest: float = ANY_FINITE) -> None:
        self._largest = largest

    def largest_of(self, name: str) -> float:  # noqa: ARG002 - as in Rules
        return self._largest

    def handle_extreme(self, name: str, values: Array, rows: int) -> NoReturn:
        bad = first_extreme(name, values, rows, self._largest)
        raise RefusedError(str(bad), "values", bad)

    def handle_outside(self, column: Column, values: Array, rows: int) -> NoReturn:
        bad = first_outside(column, values, rows)
        raise RefusedError(str(bad), "bounds", bad)


class KeepAll:
    """The ``Rules`` that keep every value, in order to look at values that were refused."""

    def largest_of(self, name: str) -> float:  # noqa: ARG002 - as in Rules
        return ANY_FINITE

    def handle_extreme(self, name: str, values: Array, rows: int) -> Array:  # noqa: ARG002 - as in Rules
        return values

    def handle_outside(self, column: Column, values: Array, rows: int) -> None:
        """Keep the values as they are."""


REFUSE_ALL: Final = RefuseAll()
KEEP_ALL: Final = KeepAll()
