"""Rings: arrays in mapped files in which row i lies in slot ``i mod length``, so new rows overwrite the oldest."""

from __future__ import annotations

import contextlib
import mmap
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from common.data import Array, Column

MapFile = Callable[[Path, int], mmap.mmap]
"""``learner.shared.mapped.map_file`` with its options bound: takes the path of a file and its size in bytes."""
MADV_POPULATE_WRITE: Final = 23
"""madvise(2); Python has no name for this advice."""


def map_ring(mapped: MapFile, path: Path, column: Column, length: int) -> Array:
    """Map a file as ``length`` rows of a column, ``[length, *shape]``.

    Raises:
        RunDirectoryError: see ``map_file``.
    """
    return view_as_ring(mapped(path, length * column.row_bytes), column)


def view_as_ring(file: mmap.mmap, column: Column) -> Array:
    """All bytes of a mapped file as rows of a column, ``[length, *shape]``."""
    array: Array = np.frombuffer(file, column.dtype)
    return array.reshape(-1, *column.shape)


def write_ring(ring: Array, rows: Array, start: int) -> None:
    """Write rows from absolute index ``start`` on; there may be as many as the ring has slots, and no more."""
    slot = start % len(ring)
    until_end = min(len(rows), len(ring) - slot)
    ring[slot : slot + until_end] = rows[:until_end]
    ring[: len(rows) - until_end] = rows[until_end:]


def read_ring(ring: Array, start: int, end: int) -> Array:
    """Copy the rows with absolute indices ``[start, end)``, at most as many as the ring has slots."""
    slot = start % len(ring)
    until_end = min(end - start, len(ring) - slot)
    return np.concatenate([ring[slot : slot + until_end], ring[: end - start - until_end]])


class FrameRing:
    """The frames of a replay, each stored once although several rows show it, and where each row's frames are.

    Frames have numbers 0, 1, 2, …, and frame n lies in slot ``n mod n_slots``. A row holds positions that count from
    the row's base: the lowest number of a frame to which its batch refers. Bases never fall from one row to the next,
    so rows lose their frames in the order in which the rows came.

    Args:
        mapped: maps a file.
        directory: where the two files are.
        frame: dtype and shape of one frame.
        capacity: frames that rows may refer to; older frames count as gone.
        n_slots: frames that the file has room for, ``capacity`` or more.
        n_rows: rows that there is room for.

    Raises:
        RunDirectoryError: the files cannot be made or opened.
    """

    def __init__(
        self, mapped: MapFile, directory: Path, frame: Column, *, capacity: int, n_slots: int, n_rows: int
    ) -> None:
        self.capacity = capacity
        self._file = mapped(directory / "frames", n_slots * frame.row_bytes)
        self.frames = view_as_ring(self._file, frame)
        """``[n_slots, *frame]``"""
        self.bases = map_ring(mapped, directory / "frame-bases", Column("base", "<i8"), n_rows)
        """``[n_rows]`` int64"""

    @property
    def n_bytes(self) -> int:
        """Bytes allocated."""
        return self.frames.nbytes + self.bases.nbytes

    def write(self, frames: Array, number: int, bases: Array, start: int) -> None:
        """Store the frames of a batch from ``number`` on, and the bases ``[rows]`` of its rows from ``start`` on."""
        self._fault_in(number % len(self.frames), len(frames))
        write_ring(self.frames, frames, number)
        write_ring(self.bases, bases, start)

    def _fault_in(self, slot: int, n: int) -> None:
        """Have the kernel map the pages of ``n`` slots with one call; a page fault for each takes seven times as long.

        This saves time only: Linux before 5.14 refuses the advice, and then each page is mapped at its first write.
        """
        begin, end = (at * self.frames.strides[0] for at in (slot, min(slot + n, len(self.frames))))
        begin -= begin % mmap.PAGESIZE
        with contextlib.suppress(OSError):
            self._file.madvise(MADV_POPULATE_WRITE, begin, end - begin)

    def find_row_since(self, number: int, first: int, end: int) -> int:
        """The first of the rows ``[first, end)`` that refers to no frame with a lower number than this; or ``end``."""
        return first + bisect_left(range(first, end), number, key=lambda row: self.bases[row % len(self.bases)])

    def take(self, slots: Array, positions: Array, out: Array) -> None:
        """Fill ``out``, ``[n, k, *frame]``, with the frames at ``[n, k]`` positions of the rows in these slots."""
        numbers = self.bases[slots][:, None] + positions
        flat = out.reshape(-1, *self.frames.shape[1:])
        np.take(self.frames, (numbers % len(self.frames)).ravel(), axis=0, out=flat, mode="clip")
