"""The frames of a replay: each stored once a batch, found by number."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

import numpy as np

from common.data import Array, Column
from learner.replay.ring import MapFile, map_ring, write_ring


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
        self.frames = map_ring(mapped, directory / "frames", frame, n_slots)
        self.bases = map_ring(mapped, directory / "frame-bases", Column("base", "<i8"), n_rows)

    @property
    def n_bytes(self) -> int:
        """Bytes allocated."""
        return self.frames.nbytes + self.bases.nbytes

    def write(self, frames: Array, number: int, start: int, rows: int, back: int) -> None:
        """Store the frames of a batch from ``number`` on; its rows from ``start`` on reach ``back`` frames further."""
        write_ring(self.frames, frames, number)
        write_ring(self.bases, np.full(rows, number - back), start)

    def first_row_since(self, number: int, first: int, end: int) -> int:
        """The first row from ``first`` on, or ``end``, that refers to no frame before this number."""
        return first + bisect_left(range(first, end), number, key=lambda row: self.bases[row % len(self.bases)])

    def take(self, slots: Array, positions: Array, out: Array) -> None:
        """Fill ``out``, ``[n, k, *frame]``, with the frames at ``[n, k]`` positions of the rows in these slots."""
        numbers = self.bases[slots][:, None] + positions
        flat = out.reshape(-1, *self.frames.shape[1:])
        np.take(self.frames, (numbers % len(self.frames)).ravel(), axis=0, out=flat, mode="clip")
