"""Gathering rows from replay memory that another process writes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from common.data import Array, Items
from learner.replay.memory import ReplayMemory
from learner.shared.mapped import fence

Draw = Callable[[int], Items]
"""Draws so many items: ``index``, absolute, ``[n]`` int64, and whatever else belongs to each draw."""


class ReplayReader:
    """Takes whole rows by absolute index; rows overwritten while they are gathered are drawn again.

    Args:
        memory: read only here.
    """

    def __init__(self, memory: ReplayMemory) -> None:
        self.memory = memory
        self._out: dict[int, Items] = {}

    def bounds(self) -> tuple[int, int]:
        """First and end of the absolute indices that can be drawn now, those that are excluded among them.

        Raises:
            IndexError: there is nothing to draw from.
        """
        first, end = self.memory.first(), self.memory.committed
        if first >= end - self.memory.n_excluded(first, end):
            raise IndexError("replay: nothing to draw from yet")
        return first, end

    def take(self, draw: Draw, size: int) -> tuple[Items, Items]:
        """What ``draw(size)`` gave, and the items at its indices.

        The arrays of the items are reused by the next call of the same size.
        """
        out = self._out.get(size)
        if out is None:
            out = self._out[size] = self.memory.schema.empty(size)
        drawn = draw(size)
        self._gather(drawn["index"], out)
        self._redraw_overwritten(draw, drawn, out)
        return drawn, out

    def whole(self, index: Array) -> Items | None:
        """The items at absolute indices ``[n]``; None if one of them is gone or was overwritten meanwhile."""
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

    def _redraw_overwritten(self, draw: Draw, drawn: Items, out: Items) -> None:
        fence()
        stale = np.flatnonzero(drawn["index"] < self.memory.first())
        while len(stale):
            fresh = draw(len(stale))
            whole = self.memory.schema.empty(len(stale))
            self._gather(fresh["index"], whole)
            for into, columns in ((drawn, fresh), (out, whole)):
                for name, column in columns.items():
                    into[name][stale] = column
            fence()
            stale = stale[fresh["index"] < self.memory.first()]
