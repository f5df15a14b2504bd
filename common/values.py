"""Values that a column may not hold: NaN, infinity, and values outside its domain."""

from __future__ import annotations

from typing import Final, NoReturn, Protocol

import numpy as np

from common.data import Array, Column
from common.domain import format_value
from common.errors import BadValue, RefusedError


def first_nonfinite(name: str, values: Array, rows: int) -> BadValue:
    """The first of the flat ``values`` of ``rows`` rows that is NaN or infinite; there must be one."""
    bad = int(np.flatnonzero(~np.isfinite(values))[0])
    return BadValue(name, "finite values", str(values[bad]), bad * rows // len(values))


def first_outside(column: Column, values: Array, rows: int) -> BadValue:
    """The first of the flat ``values`` of ``rows`` rows that is outside the column's domain; there must be one."""
    assert column.domain is not None
    bad = int(np.flatnonzero(column.domain.outside(values))[0])
    return BadValue(column.name, column.domain.text(bad), format_value(values[bad].item()), bad * rows // len(values))


class Rules(Protocol):
    """Decides what happens to values that a column may not hold: replace them, keep them, or refuse the batch."""

    def handle_nonfinite(self, name: str, values: Array, rows: int) -> Array:
        """Return the values that replace a column's flat ``values`` of ``rows`` rows, some of which are not finite.

        Raises:
            RefusedError: naming column, value and row.
        """

    def handle_outside(self, column: Column, values: Array, rows: int) -> None:
        """Accept a column's flat ``values`` of ``rows`` rows, some of which are outside its domain, or refuse them.

        Raises:
            RefusedError: naming column, bounds, value and row.
        """


class RefuseAll:
    """The ``Rules`` that refuse every value that a column may not hold."""

    def handle_nonfinite(self, name: str, values: Array, rows: int) -> NoReturn:
        bad = first_nonfinite(name, values, rows)
        raise RefusedError(str(bad), "values", bad)

    def handle_outside(self, column: Column, values: Array, rows: int) -> NoReturn:
        bad = first_outside(column, values, rows)
        raise RefusedError(str(bad), "bounds", bad)


class KeepAll:
    """The ``Rules`` that keep every value, in order to look at values that were refused."""

    def handle_nonfinite(self, name: str, values: Array, rows: int) -> Array:  # noqa: ARG002 - as in Rules
        return values

    def handle_outside(self, column: Column, values: Array, rows: int) -> None:
        """Keep the values as they are."""


REFUSE_ALL: Final = RefuseAll()
KEEP_ALL: Final = KeepAll()
