"""The values that actors, environments and datasets should not store: each is counted, clipped or refused.

Extreme values, which are NaN, infinite or beyond ``LARGEST_VALUE``, are clipped if ``server.unusual_values`` has a
number for the column, and refused otherwise: one of them can end a run, and again after each ``--resume``. Other values
outside a column's domain are refused, or counted and kept if ``server.unusual_values`` says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from common.bad_values import (
    ANY_FINITE,
    LARGEST_VALUE,
    REFUSE_ALL,
    first_extreme,
    first_outside,
    has_extreme,
    is_extreme,
)
from common.config.server_config import ServerConfig, Treatment
from common.data import Array, Column, Items, Schema
from common.errors import BadValue, RefusedError

COUNTED_BY_DEFAULT = ("obs", "next_obs")
"""Columns of floats with these names (``obs``, or ``obs/…``) count and keep values outside the domain, unless the
configuration refuses them.

Honest environments return floats outside the bounds that they declare. No table is indexed by a float, so these values
do no harm.
"""


INFO = "info/"
"""The prefix of columns that ``env.info`` adds."""


class ValueRules:
    """The rules of one run, and how many values have broken them so far.

    Args:
        schema: of the rows.
        unusual: by column, the number that replaces infinity and finite extreme values (NaN becomes 0), or what
            happens to values outside its domain. Unless that is said here, a column refuses them, but observations of
            floats are counted and kept.
    """

    def __init__(self, schema: Schema, unusual: Mapping[str, Treatment]) -> None:
        self._clip = clip = {name: how for name, how in unusual.items() if not isinstance(how, str)}
        self._largest = {  # No agent learns from the columns of ``info``.
            name: ANY_FINITE if name.startswith(INFO) else _rounded(max(LARGEST_VALUE, clip.get(name, 0.0)), column)
            for name, column in schema.float_columns.items()
        }
        bounded = schema.bounded_columns
        self._on_outside = {
            name: how if isinstance(how := unusual.get(name), str) else "count" if _is_counted(column) else "refuse"
            for name, column in bounded.items()
        }
        self._checked = [column for column in schema.columns if _is_float(column) or column.domain is not None]
        self.nonfinite_found = Counter(dict.fromkeys(schema.float_columns, 0))
        """Extreme values so far, by column."""
        self.outside_found = Counter(dict.fromkeys(bounded, 0))
        """Values so far that were outside their column's domain, by column."""

    @classmethod
    def of(cls, schema: Schema, config: ServerConfig) -> ValueRules:
        """The rules that a configuration sets."""
        return cls(schema, config.unusual_values)

    def largest_of(self, name: str) -> float:
        return self._largest[name]

    def handle_extreme(self, name: str, values: Array, rows: int) -> Array:
        """A copy of the flat ``values`` with 0 for NaN and the column's bound for other extreme values.

        Raises:
            RefusedError: the configuration gives the column no bound.
        """
        extreme = is_extreme(values, self._largest[name])
        self.nonfinite_found[name] += int(extreme.sum())
        bound = self._clip.get(name)
        if bound is None:
            bad = self._first_extreme(name, values, rows)
            raise RefusedError(str(bad), "values", bad)
        kept = np.where(np.isnan(values), 0.0, np.copysign(bound, values))
        return np.where(extreme, kept, values).astype(values.dtype)

    def handle_outside(self, column: Column, values: Array, rows: int) -> None:
        """Count the flat ``values`` outside the column's domain.

        Raises:
            RefusedError: the column refuses them.
        """
        assert column.domain is not None
        self.outside_found[column.name] += int(column.domain.outside(values).sum())
        if self._on_outside[column.name] == "refuse":
            REFUSE_ALL.handle_outside(column, values, rows)

    def check(self, items: Items, rows: int) -> Items:
        """Check rows that did not come over the wire.

        Returns:
            The same rows, or a copy in which columns are clipped.

        Raises:
            RefusedError: a column refuses a value.
        """
        checked = items
        for column in self._checked:
            values = items[column.name]
            flat = values.reshape(-1)
            if _is_float(column) and has_extreme(flat, self._largest[column.name]):
                flat = self.handle_extreme(column.name, flat, rows)
                checked = {**checked, column.name: flat.reshape(values.shape)}
            if column.domain is not None and not column.domain.holds(flat):
                self.handle_outside(column, flat, rows)
        return checked

    def can_refuse(self, column: Column) -> bool:
        """Whether there is any value that the column refuses."""
        return _is_float(column) or np.dtype(column.dtype).kind == "b" or self._refuses(column)

    def find_refused(self, column: Column, values: Array) -> Array:
        """Which rows of ``values``, ``[n, *shape]``, hold a value that is refused, ``[n]`` bool; counts nothing.

        The values have been stored: extreme values are refused in any column, since they would have been clipped.
        """
        flat = values.reshape(-1)
        found: Array = np.zeros(len(flat), bool)
        if _is_float(column):
            found |= is_extreme(flat, self._largest[column.name])
        if np.dtype(column.dtype).kind == "b":
            found |= flat.view(np.uint8) > 1
        if self._refuses(column) and column.domain is not None:
            found |= column.domain.outside(flat)
        refused: Array = np.logical_or.reduce(found.reshape(len(values), -1), axis=1)
        return refused

    def find_first_refused(self, column: Column, values: Array) -> BadValue:
        """The first value that the column refuses in ``values``, ``[n, *shape]``; there must be one."""
        flat, rows = values.reshape(-1), len(values)
        if np.dtype(column.dtype).kind == "b":
            return BadValue(column.name, "booleans of 0 or 1", str(flat.view(np.uint8).max()), 0)
        if _is_float(column) and is_extreme(flat, self._largest[column.name]).any():
            return self._first_extreme(column.name, flat, rows)
        return first_outside(column, flat, rows)

    def _first_extreme(self, name: str, values: Array, rows: int) -> BadValue:
        return first_extreme(name, values, rows, self._largest[name], " (server.unusual_values clips larger ones)")

    def _refuses(self, column: Column) -> bool:
        """Whether the column refuses values outside its domain."""
        return column.domain is not None and self._on_outside.get(column.name) == "refuse"


def _is_counted(column: Column) -> bool:
    """Whether values of the column outside its domain are counted and kept by default."""
    return _is_float(column) and column.name.partition("/")[0] in COUNTED_BY_DEFAULT


def _is_float(column: Column) -> bool:
    return np.dtype(column.dtype).kind == "f"


def _rounded(value: float, column: Column) -> float:
    """The value as the column stores it, so that a stored bound is not beyond itself."""
    dtype = np.dtype(column.dtype)
    return float(dtype.type(min(value, float(np.finfo(dtype).max))))
