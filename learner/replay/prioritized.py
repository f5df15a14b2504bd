"""Proportional prioritised sampling (Schaul et al., arXiv:1511.05952)."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from common.config.replay_config import PrioritizedConfig
from common.data import PRIORITY, Array, Items, Schema, Snapshot
from common.errors import CheckpointError, ConfigError
from learner.replay.memory import ReplayMemory
from learner.replay.reader import Draws, NothingToDrawError, find_arrivals
from learner.replay.ring import read_ring
from learner.replay.shared_buffer import SharedReplay
from learner.replay.view import View

FAN: Final = 16
TOP: Final = 4096


class _Tree:
    """Values by the slots of a ring: sums of priorities to draw by, and their minimum to normalise weights by.

    A node combines the values of its ``FAN`` children, and the top is a row of up to ``TOP`` nodes: in numpy a few wide
    levels are faster than many narrow ones. A node is always computed from all its children, never changed by a
    difference, so rounding errors do not add up.

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


EPSILON: Final = 1e-8
"""Added to every error, so that a draw whose error is 0 can still be made."""


class PrioritizedReplay(SharedReplay):
    """A ``ReplayBuffer`` over shared memory that begins draws at a row in proportion to its priority.

    The priority is ``(|td_error| + EPSILON) ^ alpha``, where the error is that of the draw that begins at the row.
    Another process stores the rows, while the tree of priorities belongs to this process. So each draw first brings the
    tree up to date: it adds the rows at which draws can begin since the last draw, each with the highest priority so
    far or with that of its column ``priority``, and clears the slots that are being overwritten.

    Between draws the tree covers the rows ``[_first, _end)``; rows at which no draw can begin, excluded rows and all
    other slots have priority 0. An absolute index below ``_first`` names a row that is gone, so an error that comes
    late never reaches a newer row in the same slot.

    Raises:
        ConfigError: the rows have a column of a name that is reserved here.
    """

    def __init__(self, memory: ReplayMemory, view: View, config: PrioritizedConfig, seed: int, n_opts: int) -> None:
        _check_names(memory.schema)
        super().__init__(memory, view, seed)
        self._config, self._n_opts = config, n_opts
        self._sums = SumTree(memory.capacity)
        self._minima = MinTree(memory.capacity) if config.normalize == "all" else None
        self._trees = [self._sums] if self._minima is None else [self._sums, self._minima]
        self._first = self._end = 0
        self._highest = 1.0
        self.updates = 0
        """Updates of priorities so far, by which beta rises."""
        self.least_probability = math.inf
        """The probability of a draw that would have the weight 1 in the last batch, in this replay alone."""

    def draw(self, size: int) -> tuple[Array, Items]:
        """Draw from each of ``size`` equal shares of the sum of priorities, in the order of slots.

        Raises:
            NothingToDrawError: there is nothing to draw from.
        """
        self._catch_up()
        if not self._sums.total:
            raise NothingToDrawError
        slots = self._sums.find((np.arange(size) + self._rng.random(size)) / size)
        ages = (self._end - 1 - slots) % self._memory.capacity
        return self._end - 1 - ages, {"priority": self._sums.values[slots]}

    def make_draws(self, size: int) -> Draws:
        self._reader.look()
        index, beside = self.draw(size)
        # A row that has a priority can be drawn, unless rows before it that its stack needs were overwritten.
        chosen, plan = self._reader.choose(index, size)
        return Draws(index, plan, beside) if len(chosen) == size else super().make_draws(size)

    def finish(self, draws: Draws) -> Items:
        """The columns ``index`` and ``weight``, see ``ReplayBuffer``; a weight of the view is a factor of it."""
        weight = self._compute_weights(draws.beside["priority"])
        by_view = draws.plan.made.get("weight")
        return {"index": draws.index, "weight": weight if by_view is None else weight * by_view}

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Give draws the priorities of their errors, both ``[n]``; beta takes one step.

        Raises:
            ValueError: an index was not drawn here, or an error is not finite.
        """
        if index.shape != td_error.shape or index.max(initial=-1) >= self._end:
            raise ValueError(
                f"priorities: expected indices below {self._end} and an error for each, found {list(index.shape)} up "
                f"to {index.max(initial=-1)} and {list(td_error.shape)} errors"
            )
        priority = self._compute_priorities(td_error)
        self.updates += 1
        self._highest = float(priority.max(initial=self._highest))
        there = index >= self._first
        self._set(index[there], priority[there])

    def state(self) -> Snapshot:
        priorities = read_ring(self._sums.values, self._first, self._end)  # [n]
        schedule = {"end": self._end, "highest": self._highest, "updates": self.updates}
        return Snapshot({**super().state().values, **schedule}, {"priorities": priorities})

    def restore(self, state: Snapshot) -> None:
        super().restore(state)
        try:
            priorities, values = state.arrays["priorities"], state.values
            end, self._highest, self.updates = values["end"], values["highest"], values["updates"]
        except KeyError as error:
            raise CheckpointError(f"replay.prioritized: expected priorities, found no {error} in the state") from error
        self._first = end - len(priorities)
        # A power cut may have taken the newest rows; then other rows get their indices.
        self._end = max(self._first, min(end, self._memory.committed))
        there = np.flatnonzero(priorities[: self._end - self._first])
        there = there[~self._memory.is_excluded(self._first + there)]  # Rows excluded now may have had a priority.
        self._set(self._first + there, priorities[there])

    def beta(self) -> float:
        """The present exponent of the weights: it rises with each update, from ``beta_0`` to 1."""
        return self._config.beta_0 + min(1.0, self.updates / self._n_opts) * (1.0 - self._config.beta_0)

    def _catch_up(self) -> None:
        """Add the rows at which draws can begin since the last draw, and clear the slots that are being overwritten.

        The writer may store rows while the two bounds are read, so ``end`` may be further than ``capacity`` from
        ``first``.
        """
        capacity, reader = self._memory.capacity, self._reader
        first, end = max(reader.first, reader.end - capacity), reader.end
        if (first, end) == (self._first, self._end):
            return
        self._clear(np.arange(max(self._first, first - capacity), first))
        arrived = self.find_new(self._end) if end > self._end else np.empty(0, np.int64)
        # A row that was there before may be found a second time: it keeps the priority that it has.
        arrived = arrived[(arrived >= first) & (self._sums.values[arrived % capacity] == 0)]
        self._set(arrived, self._read_first_priorities(arrived))
        self._first, self._end = first, end

    def find_new(self, since: int) -> Array:
        """Find the rows ``[n]`` at which a draw can begin now, but could not before the rows from ``since`` on came."""
        return find_arrivals(self._reader, since)

    def _read_first_priorities(self, index: Array) -> Array | float:
        """The priorities with which draws that begin at these rows ``[n]`` start."""
        if PRIORITY.name not in self._memory.columns:
            return self._highest
        return self._compute_priorities(self._reader.take(PRIORITY.name, index))

    def _set(self, index: Array, priority: Array | float) -> None:
        for tree in self._trees:
            tree.set(index % self._memory.capacity, priority)

    def _clear(self, index: Array) -> None:
        for tree in self._trees:
            tree.clear(index % self._memory.capacity)

    def _compute_priorities(self, td_error: Array) -> Array:
        finite = np.isfinite(td_error)
        if not finite.all():
            raise ValueError(
                f"priorities: expected finite errors, found {td_error[~finite][0]}; has training diverged?"
            )
        priority: Array = (np.abs(td_error.astype(np.float64)) + EPSILON) ** self._config.alpha
        return priority

    def _compute_weights(self, priority: Array) -> Array:
        """``(N P)^-beta``, divided by its maximum, ``[n]`` float32.

        N and the sum in P cancel, and the least priority has the greatest weight. So a weight is
        ``(least / priority)^beta``.
        """
        least = priority.min()
        if self._minima is not None:
            least = min(least, self._minima.find_least())
        self.least_probability = float(least / self._sums.total)
        weights: Array = (least / priority) ** self.beta()
        return weights.astype(np.float32)


def _check_names(schema: Schema) -> None:
    for column in schema.columns:
        if column.name in ("index", "weight") or (column.name == PRIORITY.name and column != PRIORITY):
            raise ConfigError(
                f"replay.prioritized: rows have a column '{column}', but prioritised replay itself uses the names "
                f"'index', 'weight' and '{PRIORITY}'; give the column another name"
            )
