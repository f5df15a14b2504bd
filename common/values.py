"""Values that a column may not hold: NaN, infinity, and all outside its domain."""

from __future__ import annotations

from typing import Final, NoReturn, Protocol

import numpy as np

from common.data import Array, Column
from common.domain import shown
from common.errors import BadValue, RefusedError


def first_nonfinite(name: str, values: Array, rows: int) -> BadValue:
    """The first of the flat ``values`` of ``rows`` rows that is NaN or infinite; there must be one."""
    bad = int(np.flatnonzero(~np.isfinite(values))[0])
    return BadValue(name, "finite values", str(values[bad]), bad * rows // len(values))


def first_outside(column: Column, values: Array, rows: int) -> BadValue:
    """The first of the flat ``values`` of ``rows`` rows that is outside the column's domain; there must be one."""
    assert column.domain is not None
    bad = int(np.flatnonzero(column.domain.outside(values))[0])
    return BadValue(column.name, column.domain.text(bad), shown(values[bad].item()), bad * rows // len(values))


class Rules(Protocol):
    """Decides for each such value: replace it, keep it, or refuse the batch."""

    def nonfinite(self, name: str, values: Array, rows: int) -> Array:
        """Finite values in place of a column's flat ``values`` of ``rows`` rows, of which some are not finite.

        Raises:
            RefusedError: naming column, value and row.
        """

    def outside(self, column: Column, values: Array, rows: int) -> None:
        """Hear of a column's flat ``values`` of ``rows`` rows, of which some are outside its domain.

        Raises:
            RefusedError: naming column, bounds, value and row.
        """


class RefuseAll:
    """The ``Rules`` by which a column holds nothing that it may not hold."""

    def nonfinite(self, name: str, values: Array, rows: int) -> NoReturn:
        bad = first_nonfinite(name, values, rows)
        raise RefusedError(str(bad), "values", bad)

    def outside(self, column: Column, values: Array, rows: int) -> NoReturn:
        bad = first_outside(column, values, rows)
        raise RefusedError(str(bad), "bounds", bad)


class KeepAll:
    """The ``Rules`` by which a column may hold anything: to look at what was refused."""

    def nonfinite(self, name: str, values: Array, rows: int) -> Array:  # noqa: ARG002 - as in Rules
        return values

    def outside(self, column: Column, values: Array, rows: int) -> None:
        """Keep the values as they are."""


REFUSE_ALL: Final = RefuseAll()
KEEP_ALL: Final = KeepAll()
