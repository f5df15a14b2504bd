"""Arrays in mapped files that are written round after round: row i is in slot ``i mod length``."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np

from common.data import Array, Column

MapFile = Callable[[Path, int], mmap.mmap]
"""``learner.shared.control.map_file``, knowing already whether files are made and written."""


def map_ring(mapped: MapFile, path: Path, column: Column, length: int) -> Array:
    """The rows of a column in a file, ``[length, *shape]``.

    Raises:
        RunDirectoryError: see ``map_file``.
    """
    return ring_over(mapped(path, length * column.row_bytes), column)


def ring_over(file: mmap.mmap, column: Column) -> Array:
    """All of a mapped file as rows of a column, ``[length, *shape]``."""
    array: Array = np.frombuffer(file, column.dtype)
    return array.reshape(-1, *column.shape)


def write_ring(ring: Array, rows: Array, start: int) -> None:
    """Write rows, at most one round of them, at absolute index ``start``."""
    slot = start % len(ring)
    until_end = min(len(rows), len(ring) - slot)
    ring[slot : slot + until_end] = rows[:until_end]
    ring[: len(rows) - until_end] = rows[until_end:]


def read_ring(ring: Array, start: int, end: int) -> Array:
    """A copy of the rows with absolute indices ``[start, end)``, at most one round of them."""
    slot = start % len(ring)
    until_end = min(end - start, len(ring) - slot)
    return np.concatenate([ring[slot : slot + until_end], ring[: end - start - until_end]])
