"""Gathers the rows that a view plans to draw, while another process writes the replay."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import numpy as np

from common.data import FINAL, Array, Items, Schema
from common.shared.mapped import fence
from learner.replay.memory import ReplayMemory
from learner.replay.view import Plan, View


class NothingToDrawError(IndexError):
    """There is no row yet at which a draw can begin."""

    def __init__(self) -> None:
        super().__init__("replay: nothing to draw from yet")


@dataclass(frozen=True, slots=True)
class Draws:
    """Draws that have been chosen and not gathered yet.

    Args:
        index: the rows at which they begin, ``[n]`` int64, absolute.
        plan: how to assemble them.
        beside: columns that belong to each draw and do not come from rows, ``[n, …]``.
    """

    index: Array
    plan: Plan
    beside: Items

    def replace(self, at: Array, others: Draws) -> None:
        """Replace the draws at positions ``at`` ``[k]`` by other draws ``[k]``."""
        into = self._arrays()
        for name, column in others._arrays().items():
            into[name][at] = column

    def _arrays(self) -> Items:
        """All arrays, ``[n, …]``; some of them may be the same array."""
        plan = self.plan
        rows = {f"take {name}": index for name, (_, index) in plan.takes.items()}
        also = {f"also {i}": index for i, index in enumerate(plan.also)}
        return {**plan.made, **self.beside, **rows, **also, "begin": self.index, "lowest": plan.lowest}


MakeDraws = Callable[[int], Draws]
"""Makes this many draws."""
TRIES: Final = 1000
"""The most times that spoilt draws are made again."""


class Gathered(Protocol):
    """A column of a batch: an array, or a tensor."""

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""

    def __getitem__(self, key: Any, /) -> Any: ...

    def __setitem__(self, key: Any, value: Any, /) -> None: ...

    def __or__(self, other: Any, /) -> Any: ...


ColumnT = TypeVar("ColumnT", bound=Gathered)


class Gatherer(abc.ABC, Generic[ColumnT]):
    """Gathers draws into columns of one kind: arrays on the host, or tensors on a device.

    The writer may overwrite rows while they are gathered. It raises ``oldest`` above a row before it overwrites the
    row. So ``oldest`` is read again after a batch has been gathered: draws whose rows all lie at ``oldest`` or above
    are whole. All other draws may be torn, and are made again.
    """

    AHEAD_BYTES: ClassVar[int]
    """The most bytes that two or more batches gathered at once may take."""

    def gather(self, make: MakeDraws, size: int) -> tuple[Draws, dict[str, ColumnT]]:
        """Make draws and assemble a batch of them; draws that are torn or use an excluded row are made again.

        Returns:
            The draws, and the columns of the view, ``[size, …]``. Columns of stored values may be reused by the next
            call.

        Raises:
            NothingToDrawError: there is nothing to draw from.
        """
        draws = make(size)
        batch = self.fill(draws.plan)
        spoilt = self.find_spoilt(draws.plan)
        if len(spoilt):
            self._redraw(make, spoilt, draws, batch)
        return draws, {**batch, **self.place(draws.plan.made)}

    @abc.abstractmethod
    def fill(self, plan: Plan, *, afresh: bool = False) -> dict[str, ColumnT]:
        """Gather the columns that a plan takes, ``[n, …]``; ``afresh``: not into the memory of the last batch."""

    @abc.abstractmethod
    def find_spoilt(self, plan: Plan) -> Array:
        """The positions of draws with a row that has been overwritten by now or is excluded, ``[k]``."""

    @abc.abstractmethod
    def place(self, columns: Items) -> dict[str, ColumnT]:
        """Arrays as columns of this kind."""

    def _redraw(self, make: MakeDraws, spoilt: Array, draws: Draws, batch: dict[str, ColumnT]) -> None:
        """Replace the draws at positions ``spoilt`` by other draws, and put their rows into the batch."""
        for _ in range(TRIES):
            others = make(len(spoilt))
            for name, column in self.fill(others.plan, afresh=True).items():
                batch[name][spoilt] = column
            draws.replace(spoilt, others)
            spoilt = spoilt[self.find_spoilt(others.plan)]
            if not len(spoilt):
                return
        raise NothingToDrawError


class ReplayReader(Gatherer[Array]):
    """The rows of a replay at the moment of the last ``look``, and batches of them as a view assembles them."""

    AHEAD_BYTES = 512 << 10

    def __init__(self, memory: ReplayMemory, view: View, rng: np.random.Generator) -> None:
        self.memory, self.view, self.rng = memory, view, rng
        self.first = self.end = 0
        self._base = 0
        """A multiple of the number of slots, at most ``first``: row i lies in slot ``i - _base``, wrapped once."""
        self._out: Items = {}

    @property
    def schema(self) -> Schema:
        """The columns of a row."""
        return self.memory.schema

    def look(self) -> None:
        """Read again which rows the replay holds.

        Raises:
            NothingToDrawError: there are none, or all are excluded.
        """
        memory = self.memory
        self.first, self.end = memory.first(), memory.committed
        if self.first >= self.end - memory.count_excluded(self.first, self.end):
            raise NothingToDrawError
        self._base = self.first - self.first % memory.n_slots

    def next(self, index: Array) -> Array:
        """See ``Rows``."""
        assert self.memory.links is not None
        offset = self.memory.links.next.take(index - self._base, mode="wrap")
        found: Array = index + offset
        found[(offset == 0) | (found >= self.end)] = -1
        return found

    def chain(self, index: Array, n: int) -> Array:
        """See ``Rows``."""
        assert self.memory.links is not None
        links, end = self.memory.links.next, self.end - self._base
        found = np.empty((n + 1, *index.shape), np.int64)  # Slots that are not wrapped; time first.
        np.subtract(index, self._base, out=found[0])
        offset = np.empty(index.shape, links.dtype)
        for t in range(n):  # Unknown is 0: the chain then stays where it is.
            links.take(found[t], mode="wrap", out=offset)
            np.add(found[t], offset, out=found[t + 1])
        unknown = (found[1:] == found[:-1]) | (found[1:] >= end)
        found += self._base
        found[1:][unknown] = -1
        return np.moveaxis(found, 0, -1)

    def previous(self, index: Array) -> Array:
        """See ``Rows``."""
        assert self.memory.links is not None
        offset = self.memory.links.previous.take(index - self._base, mode="wrap")
        found: Array = index - offset
        found[(offset == 0) | (found < self.first)] = -1
        return found

    def take(self, column: str, index: Array) -> Array:
        """See ``Rows``."""
        return self.memory.columns[column].take(index - self._base, axis=0, mode="wrap")

    def can_draw(self, index: Array) -> Array:
        """At which of the rows a draw can begin, ``[n]`` bool: the view allows it, and the row is not excluded."""
        found = self.view.can_draw(self, index)
        return found & ~self.memory.is_excluded(index) if len(self.memory.excluded) else found

    def plan(self, index: Array) -> Plan:
        """The plan of the view for draws that begin at these rows ``[n]``, weighed if the view says so."""
        plan = self.view.plan(self, index)
        return plan if self.view.weigh is None else self.view.weigh(self, index, plan)

    def choose(self, tries: Array, size: int) -> tuple[Array, Plan]:
        """The choice of the view among the rows ``tries``, see ``View.choose``; the plan is that of ``plan``."""
        index, plan = self.view.choose(self, tries, size)
        return index, plan if self.view.weigh is None else self.view.weigh(self, index, plan)

    def place(self, columns: Items) -> Items:
        return columns

    def fill(self, plan: Plan, *, afresh: bool = False) -> Items:
        columns, base = self.memory.columns, self._base
        out: Items = {} if afresh else self._out  # These arrays grow to the largest batch.
        slots: dict[int, Array] = {}
        filled: Items = {}
        for name, (column, index) in plan.takes.items():
            at = slots.get(id(index))
            if at is None:
                at = slots[id(index)] = index - base
            stored, into = columns[column], out.get(name)
            shape = at.shape + stored.shape[1:]
            if into is None or len(into) < len(at) or into.shape[1:] != shape[1:]:
                into = out[name] = np.empty(shape, stored.dtype)
            # With out= and a mode, take writes in place: 102 µs, and fancy indexing took 786 µs (Atari, batch 32).
            filled[name] = stored.take(at, 0, into[: len(at)], "wrap")
        return filled

    def find_spoilt(self, plan: Plan, first: int | None = None) -> Array:
        """See ``Gatherer``.

        Args:
            plan: of the draws.
            first: rows before this one count as overwritten; None: those before the oldest row that counts now.
        """
        fence()
        spoilt: Array = plan.lowest < (self.memory.first() if first is None else first)
        if len(self.memory.excluded):
            for index in {id(at): at for at in (*(at for _, at in plan.takes.values()), *plan.also)}.values():
                spoilt = spoilt | self.memory.is_excluded(index).reshape(len(spoilt), -1).any(axis=1)
        return np.flatnonzero(spoilt)


def find_arrivals(reader: ReplayReader, since: int) -> Array:
    """Find the rows at which a draw can begin now, but could not before the rows from ``since`` on came.

    Whether a draw can begin at a row is settled once ``View.reach`` rows follow it, or the final row of its episode.
    So this function looks only at rows at that distance before a new row, and at smaller distances before a new final
    row. It finds each row once.

    Returns:
        Absolute indices ``[n]``, ascending, each once.
    """
    new = np.arange(max(since, reader.first), reader.end)
    reach = reader.view.reach
    if reach and len(new):
        new = _walk_back(reader, new, reach)
    return new[reader.can_draw(new)]


def _walk_back(reader: ReplayReader, new: Array, reach: int) -> Array:
    """The rows ``reach`` before the new rows in their lanes, and all rows at most ``reach`` before new final rows."""
    at, is_end, found = new, reader.take(FINAL.name, new), list[Array]()
    for distance in range(1, reach + 1):
        at = reader.previous(at)
        goes_on = at >= 0
        if not reader.view.crosses_episodes:  # Earlier episodes were settled by their own final rows.
            goes_on &= ~reader.take(FINAL.name, np.maximum(at, reader.first))
        at, is_end = at[goes_on], is_end[goes_on]
        found.append(at if distance == reach else at[is_end])
    return np.unique(np.concatenate(found))
