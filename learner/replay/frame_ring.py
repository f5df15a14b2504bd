"""The frames of a replay, which several rows share, found by number."""

from __future__ import annotations

import contextlib
import mmap
from bisect import bisect_left
from pathlib import Path
from typing import Final

import numpy as np

from common.data import Array, Column
from learner.replay.ring import MapFile, map_ring, ring_over, write_ring

MADV_POPULATE_WRITE: Final = 23
"""madvise(2); Python has no name for it."""


class FrameStore:
    """Frames have numbers 0, 1, 2, …; a row's positions count from its base, the lowest number its batch refers to.

    Bases never fall from row to row, so rows lose their frames in the order in which they came.

    Args:
        mapped: maps a file.
        directory: where the two files are.
        frame: what a frame is like.
        capacity: frames kept.
        n_slots: frames there is room for, at least as many.
        n_rows: rows there is room for.

    Raises:
        RunDirectoryError: the files cannot be made or opened.
    """

    def __init__(
        self, mapped: MapFile, directory: Path, frame: Column, *, capacity: int, n_slots: int, n_rows: int
    ) -> None:
        self.capacity = capacity
        self._file = mapped(directory / "frames", n_slots * frame.row_bytes)
        self.frames = ring_over(self._file, frame)
        self.bases = map_ring(mapped, directory / "frame-bases", Column("base", "<i8"), n_rows)

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
        """Get the pages of ``n`` slots ready at once: one by one, when first written to, takes seven times as long."""
        begin, end = (at * self.frames.strides[0] for at in (slot, min(slot + n, len(self.frames))))
        begin -= begin % mmap.PAGESIZE
        with contextlib.suppress(OSError):  # Linux knows it from 5.14 on; without, they come one by one.
            self._file.madvise(MADV_POPULATE_WRITE, begin, end - begin)

    def first_row_since(self, number: int, first: int, end: int) -> int:
        """The first row from ``first`` on, or ``end``, that refers to no frame before this number."""
        return first + bisect_left(range(first, end), number, key=lambda row: self.bases[row % len(self.bases)])

    def take(self, slots: Array, positions: Array, out: Array) -> None:
        """Fill ``out``, ``[n, k, *frame]``, with the frames at ``[n, k]`` positions of the rows in these slots."""
        numbers = self.bases[slots][:, None] + positions
        flat = out.reshape(-1, *self.frames.shape[1:])
        np.take(self.frames, (numbers % len(self.frames)).ravel(), axis=0, out=flat, mode="clip")
