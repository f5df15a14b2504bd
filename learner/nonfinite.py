"""NaN and infinity in what actors send: counted by column, and clipped where ``server.clip_nonfinite`` says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from common.codec import refuse_nonfinite
from common.data import Array, Column, Schema
from common.errors import ConfigError
from common.hints import nearest


class NonFinite:
    """What ingest does with a column in which not all is finite.

    Args:
        schema: of the items.
        bounds: by column, what infinity becomes; a column that is not among them refuses its batch.
    """

    def __init__(self, schema: Schema, bounds: Mapping[str, float]) -> None:
        self._bounds = bounds
        self.found = Counter(dict.fromkeys(float_columns(schema), 0))
        """Values so far that were not finite, by column."""

    def __call__(self, name: str, values: Array, rows: int) -> Array:
        """A copy of the flat ``values`` with NaN as 0 and infinity as the column's bound.

        Raises:
            RefusedError: the column has none.
        """
        self.found[name] += values.size - int(np.isfinite(values).sum())
        bound = self._bounds.get(name)
        if bound is None:
            refuse_nonfinite(name, values, rows)
        return np.nan_to_num(values, nan=0.0, posinf=bound, neginf=-bound)


def float_columns(schema: Schema) -> dict[str, Column]:
    """Columns of the wire that could hold NaN, by name; all frames together are ``frames``."""
    columns = [column.packed for column in schema.columns] + ([schema.frame] if schema.frame else [])
    return {column.name: column for column in columns if np.dtype(column.dtype).kind == "f"}


def check_bounds(bounds: Mapping[str, float], schema: Schema) -> None:
    """See that each bound is of a column and fits its dtype.

    Raises:
        ConfigError: one is not.
    """
    columns = float_columns(schema)
    for name, bound in bounds.items():
        if name not in columns:
            raise ConfigError(
                f"server.clip_nonfinite: expected a column of floats, found '{name}'{nearest(name, columns)}"
            )
        most = float(np.finfo(columns[name].dtype).max)
        if bound > most:
            raise ConfigError(f"server.clip_nonfinite.{name}: expected at most {most:g}, found {bound:g}")
