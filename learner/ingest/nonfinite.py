"""NaN and infinity in what actors send: counted by column, and clipped where ``server.clip_nonfinite`` says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from common.codec import refuse_nonfinite
from common.data import Array, Schema


class NonFinite:
    """What ingest does with a column in which not all is finite.

    Args:
        schema: of the items.
        bounds: by column, what infinity becomes; a column that is not among them refuses its batch.
    """

    def __init__(self, schema: Schema, bounds: Mapping[str, float]) -> None:
        self._bounds = bounds
        self.found = Counter(dict.fromkeys(schema.float_columns, 0))
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
