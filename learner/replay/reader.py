"""Gathering rows from replay memory while another process writes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from common.data import Array, Items
from learner.replay.memory import ReplayMemory
from learner.shared.mapped import fence

DrawIndices = Callable[[int], Items]
"""Draws this many items: a column ``index``, absolute, ``[n]`` int64, and other columns that belong to each draw."""


class ReplayReader:
    """Gathers whole rows by absolute index.

    The writer may overwrite rows while they are gathered here. It raises ``oldest`` above a row before it touches the
    row. So ``oldest`` is read again after the rows are gathered: rows from ``oldest`` on are whole, rows below it may
    be torn.

    Args:
        memory: read only here.
    """

    def __init__(self, memory: ReplayMemory) -> None:
        self.memory = memory
        self._out: dict[int, Items] = {}

    def bounds(self) -> tuple[int, int]:
        """First and end of the absolute indices that can be drawn now, excluded items among them.

        Raises:
            IndexError: there is nothing to draw from.
        """
        first, end = self.memory.first(), self.memory.committed
        if first >= end - self.memory.count_excluded(first, end):
            raise IndexError("replay: nothing to draw from yet")
        return first, end

    def take(self, draw: DrawIndices, size: int) -> tuple[Items, Items]:
        """Draw items and gather their rows; redraw the rows that were overwritten meanwhile.

        Returns:
            The columns that ``draw`` gave, and the columns of the items, ``[size, *shape]``. The latter arrays are
            reused by the next call of the same size.
        """
        out = self._out.get(size)
        if out is None:
            out = self._out[size] = self.memory.schema.empty(size)
        drawn = draw(size)
        self._gather(drawn["index"], out)
        self._redraw_overwritten(draw, drawn, out)
        return drawn, out

    def read(self, index: Array) -> Items | None:
        """The items at absolute indices ``[n]``; None if one is gone, or is overwritten while it is gathered."""
        items = self.memory.schema.empty(len(index))
        self._gather(index, items)
        fence()
        return items if index.min() >= self.memory.first() else None

    def _gather(self, indices: Array, out: Items) -> None:
        memory = self.memory
        slots = indices % memory.n_slots
        for column in memory.schema.columns:
            stored = memory.columns[column.name]
            if column.frames and memory.frames is not None:
                memory.frames.take(slots, stored[slots], out[column.name])
            else:
                # out= with mode="clip" writes in place: 102 µs where fancy indexing took 786 (Atari, batch 32).
                np.take(stored, slots, axis=0, out=out[column.name], mode="clip")

    def _redraw_overwritten(self, draw: DrawIndices, drawn: Items, out: Items) -> None:
        """Replace rows that may be torn, until none is left; ``drawn`` gets the columns of the new draws too."""
        fence()
        torn = np.flatnonzero(drawn["index"] < self.memory.first())
        while len(torn):
            fresh = draw(len(torn))
            rows = self.memory.schema.empty(len(torn))
            self._gather(fresh["index"], rows)
            for into, columns in ((drawn, fresh), (out, rows)):
                for name, column in columns.items():
                    into[name][torn] = column
            fence()
            torn = torn[fresh["index"] < self.memory.first()]
