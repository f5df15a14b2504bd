"""Rings: arrays in mapped files in which row i lies in slot ``i mod length``, so new rows overwrite the oldest."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from common.data import Array, Column

MapFile = Callable[[Path, int], mmap.mmap]
"""``learner.shared.mapped.map_file`` with its options bound: takes the path of a file and its size in bytes."""


def map_ring(mapped: MapFile, path: Path, column: Column, length: int) -> Array:
    """Map a file as ``length`` rows of a column, ``[length, *shape]``.

    Raises:
        RunDirectoryError: see ``map_file``.
    """
    array: Array = np.frombuffer(mapped(path, length * column.row_bytes), column.dtype)
    return array.reshape(-1, *column.shape)


def write_ring(ring: Array, rows: Array, start: int) -> None:
    """Write rows from absolute index ``start`` on; there may be as many as the ring has slots, and no more."""
    length, n = len(ring), len(rows)
    slot = start % length
    if slot + n <= length:
        ring[slot : slot + n] = rows
        return
    until_end = length - slot
    ring[slot:] = rows[:until_end]
    ring[: n - until_end] = rows[until_end:]


def write_rings(rings: Sequence[Array], columns: Sequence[Array], start: int) -> int:
    """Write the rows ``[n, *shape]`` of each column into its ring, all of one length, as ``write_ring`` does.

    Returns:
        The CRC-32 of the bytes that were written, one column after another.
    """
    slot, checksum = start % len(rings[0]), 0
    end = slot + len(columns[0])
    if end <= len(rings[0]):
        for ring, rows in zip(rings, columns, strict=True):
            part = ring[slot:end]
            part[...] = rows
            checksum = zlib.crc32(part.data, checksum)
        return checksum
    for ring, rows in zip(rings, columns, strict=True):
        write_ring(ring, rows, start)
        checksum = zlib.crc32(np.ascontiguousarray(rows, ring.dtype).data, checksum)
    return checksum


def read_ring(ring: Array, start: int, end: int) -> Array:
    """Copy the rows with absolute indices ``[start, end)``, at most as many as the ring has slots."""
    length, n = len(ring), end - start
    slot = start % length
    if slot + n <= length:
        return ring[slot : slot + n].copy()
    return np.concatenate([ring[slot:], ring[: n - (length - slot)]])
