"""Trees over the slots of a ring whose nodes combine their children: sums to draw by, minima to normalise by.

A node has ``FAN`` children, and the top is a row of up to ``TOP`` nodes: in numpy few wide levels are quicker than many
narrow ones. Nodes are combined anew from their children, never adjusted by a difference, so no rounding error grows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from common.data import Array

FAN: Final = 16
TOP: Final = 4096


class _Tree:
    """Values by slot.

    Args:
        size: slots, at least 1.
        combine: how a node is made of its children.
        neutral: what every slot holds at first; combined with anything it makes no difference.
    """

    def __init__(self, size: int, combine: np.ufunc, neutral: float) -> None:
        self._combine, self._neutral = combine, neutral
        self._levels: list[Array] = []  # From the leaves up, each [nodes, FAN].
        nodes = size
        while nodes > TOP:
            nodes = -(-nodes // FAN)
            self._levels.append(np.full((nodes, FAN), neutral))
        self._top = np.full(nodes, neutral)
        self._rows = [*(level.reshape(-1) for level in self._levels), self._top]
        self.values = self._rows[0][:size]
        """Of every slot, float64; to be read only."""

    def set(self, slots: Array, values: Array | float) -> None:
        """Set the values ``[n]`` of ``slots`` ``[n]``; of a slot named twice the last counts."""
        if not len(slots):
            return
        self._rows[0][slots] = values
        for level, above in zip(self._levels, self._rows[1:], strict=True):
            slots = slots // FAN
            # Neighbours have one parent: in order, as they are mostly, they need it once.
            slots = slots[np.append(True, slots[1:] != slots[:-1])]
            above[slots] = self._combine.reduce(level.take(slots, axis=0), axis=1)

    def clear(self, slots: Array) -> None:
        """Make ``slots`` ``[n]`` as they were at first."""
        self.set(slots, self._neutral)


class SumTree(_Tree):
    """Finds slots by their share of a sum, for values of at least 0."""

    def __init__(self, size: int) -> None:
        super().__init__(size, np.add, 0.0)

    def find(self, shares: Array) -> Array:
        """The slots at which the running sum passes these shares of the total, never one of value 0.

        Args:
            shares: ``[n]`` in [0, 1]; the total must be above 0.

        Returns:
            ``[n]`` int64; uniform shares draw each slot in proportion to its value.
        """
        sums = self._top.cumsum()
        mass = _within(shares * sums[-1], sums[-1])
        nodes = sums.searchsorted(mass, side="right")
        mass = mass - (sums - self._top)[nodes]
        first = np.arange(0, len(shares) * FAN, FAN)
        for level in reversed(self._levels):
            children = level.take(nodes, axis=0)  # [n, FAN]
            sums = children.cumsum(axis=1)
            mass = _within(mass, sums[:, -1])
            child = (sums > mass[:, None]).argmax(axis=1)
            mass = mass - (sums - children).take(first + child)
            nodes = nodes * FAN + child
        return nodes


def _within(mass: Array, total: Array) -> Array:
    """``mass`` in ``[0, total)``, which rounding may have left: beyond it lies a slot of value 0."""
    return np.maximum(np.minimum(mass, np.nextafter(total, 0.0)), 0.0)


class MinTree(_Tree):
    """Knows the least value; a slot without one does not count."""

    def __init__(self, size: int) -> None:
        super().__init__(size, np.minimum, np.inf)

    def least(self) -> float:
        """The least value; infinity if no slot has one."""
        return float(self._top.min())
