"""Trees over the slots of a ring: sums of priorities to draw by, and their minimum to normalise weights by.

A node combines the values of its ``FAN`` children, and the top is a row of up to ``TOP`` nodes: in numpy a few wide
levels are faster than many narrow ones. A node is always computed from all its children, never changed by a difference,
so rounding errors do not add up.
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
        neutral: the value of every slot at first; combined with another value it gives that value.
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
        """The value of every slot, ``[size]`` float64; read only."""

    def set(self, slots: Array, values: Array | float) -> None:
        """Set the values ``[n]`` of ``slots`` ``[n]``; if a slot is named twice, its last value counts."""
        if not len(slots):
            return
        self._rows[0][slots] = values
        for level, above in zip(self._levels, self._rows[1:], strict=True):
            slots = slots // FAN
            # Slots mostly come in order, so slots of one parent are neighbours: the parent is computed once.
            slots = slots[np.append(True, slots[1:] != slots[:-1])]
            above[slots] = self._combine.reduce(level.take(slots, axis=0), axis=1)

    def clear(self, slots: Array) -> None:
        """Give ``slots`` ``[n]`` the value that every slot has at first."""
        self.set(slots, self._neutral)


class SumTree(_Tree):
    """Finds slots by shares of the sum of all values, which must be at least 0."""

    def __init__(self, size: int) -> None:
        super().__init__(size, np.add, 0.0)

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._top.sum())

    def find(self, shares: Array) -> Array:
        """The slots at which the running sum passes these shares of the total, never a slot of value 0.

        Args:
            shares: ``[n]`` in [0, 1]; the total must be above 0.

        Returns:
            ``[n]`` int64; uniform shares draw each slot in proportion to its value.
        """
        sums = self._top.cumsum()
        mass = _clip(shares * sums[-1], sums[-1])
        nodes = sums.searchsorted(mass, side="right")
        mass = mass - (sums - self._top)[nodes]
        first = np.arange(0, len(shares) * FAN, FAN)
        for level in reversed(self._levels):
            children = level.take(nodes, axis=0)  # [n, FAN]
            sums = children.cumsum(axis=1)
            mass = _clip(mass, sums[:, -1])
            child = (sums > mass[:, None]).argmax(axis=1)
            mass = mass - (sums - children).take(first + child)
            nodes = nodes * FAN + child
        return nodes


def _clip(mass: Array, total: Array) -> Array:
    """Put ``mass`` back into ``[0, total)`` where rounding has moved it out: a slot of value 0 may lie there."""
    return np.maximum(np.minimum(mass, np.nextafter(total, 0.0)), 0.0)


class MinTree(_Tree):
    """Finds the least value; slots without a value do not count."""

    def __init__(self, size: int) -> None:
        super().__init__(size, np.minimum, np.inf)

    def find_least(self) -> float:
        """The least value; infinity if no slot has one."""
        return float(self._top.min())
