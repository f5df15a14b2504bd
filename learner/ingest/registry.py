"""Who the actors are: ids, seeds, rungs, liveness, statistics. No I/O; kept in the shared actor table."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from common.data import Array
from common.errors import CrossborderError
from learner.actor_table import REPORTED, ActorState

_HOLDS_ID = (ActorState.AWAY, ActorState.ONLINE)


class TooManyActorsError(CrossborderError):
    """Every actor id is taken."""


class Registry:
    """The rows of the actor table, by incarnation. Rows a former ingest process wrote are taken over.

    Actor processes get rows 0, 1, 2, … in the order of joining and keep them, while an id passes on from one that is
    gone; when the table is full, so does the row of the one gone for longest.

    Args:
        table: see ``map_actor_table``.
        max_actors: actor ids there are.
        lost_seconds: an actor silent for so long gives its id back.
        clock: seconds, monotonic.
    """

    def __init__(
        self, table: Array, max_actors: int, lost_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._reported = table[list(REPORTED)]
        self._max_actors = max_actors
        self._lost_seconds = lost_seconds
        self._clock = clock
        self._rows = {int(row["incarnation"]): i for i, row in enumerate(table) if row["state"] != ActorState.UNUSED}
        np.minimum(table["last_seen"], clock(), out=table["last_seen"])  # The clock begins anew when the host does.
        back = np.isin(table["state"], _HOLDS_ID)  # Those who were here get the time to come back.
        table["state"][back], table["last_seen"][back] = ActorState.AWAY, clock()
        self._returns: deque[float] = deque(maxlen=100)
        self._lengths: deque[int] = deque(maxlen=100)

    def join(self, incarnation: int, host: str, pid: int) -> int:
        """Enter an actor and return its id: the one it had, or the smallest free one.

        Raises:
            TooManyActorsError: no id is free.
        """
        self.expire()
        row = self._rows.get(incarnation)
        if row is None or self._table["state"][row] not in _HOLDS_ID:
            row = self._enter(incarnation, self._free_id(), row)
        self._table["host"][row] = host.encode()[:64]
        self._table["pid"][row] = pid
        self._table["last_seen"][row] = self._clock()
        return int(self._table["actor_id"][row])

    def _free_id(self) -> int:
        taken = set(self._table["actor_id"][np.isin(self._table["state"], _HOLDS_ID)].tolist())
        free = next((i for i in range(self._max_actors) if i not in taken), None)
        if free is None:
            raise TooManyActorsError(f"all {self._max_actors} actor ids (server.max_actors) are taken")
        return free

    def _enter(self, incarnation: int, actor_id: int, row: int | None) -> int:
        if row is None:
            row = self._unused_row()
            self._rows.pop(int(self._table["incarnation"][row]), None)
            self._table[row] = 0
            self._table["incarnation"][row] = incarnation
            self._rows[incarnation] = row
        self._table["actor_id"][row] = actor_id
        self._table["state"][row] = ActorState.AWAY
        return row

    def _unused_row(self) -> int:
        """The first row never used, or the one of the actor that has been gone for longest."""
        gone = ~np.isin(self._table["state"], _HOLDS_ID)
        return int(np.where(gone, self._table["last_seen"], np.inf).argmin())

    def row_of(self, incarnation: int) -> int | None:
        """The row of an actor that has joined and is not gone."""
        row = self._rows.get(incarnation)
        return row if row is not None and self._table["state"][row] in _HOLDS_ID else None

    def actor_id(self, row: int) -> int:
        return int(self._table["actor_id"][row])

    def state(self, row: int) -> ActorState:
        return ActorState(int(self._table["state"][row]))

    def set_state(self, row: int, state: ActorState) -> None:
        self._table["state"][row] = state
        self._table["last_seen"][row] = self._clock()

    def seen(self, row: int, figures: tuple[float, ...]) -> None:
        """Note a sign of life with the actor's own figures, those of ``REPORTED``."""
        self._table["last_seen"][row] = self._clock()
        self._reported[row] = figures

    def stored(
        self, row: int, items: int, behaviour_opt_steps: int, returns: Sequence[float], lengths: Sequence[int]
    ) -> None:
        """Note a batch that was stored and the episodes that came with it."""
        self._table["items"][row] += items
        self._table["behaviour_opt_steps"][row] = behaviour_opt_steps
        if returns:
            self._table["episodes"][row] += len(returns)
            self._table["last_return"][row] = returns[-1]
            self._returns.extend(returns)
            self._lengths.extend(lengths)

    def expire(self) -> list[int]:
        """Give up actors that were silent for too long; their ids."""
        silent = self._table["last_seen"] < self._clock() - self._lost_seconds
        lost = np.flatnonzero(silent & (self._table["state"] == ActorState.AWAY))
        self._table["state"][lost] = ActorState.LOST
        return [int(i) for i in self._table["actor_id"][lost]]

    def count(self, state: ActorState) -> int:
        return int((self._table["state"] == state).sum())

    def total(self, field: str) -> int:
        return int(self._table[field].sum())

    def present(self) -> Array:
        """A copy of the rows of those that hold an id."""
        rows: Array = self._table[np.isin(self._table["state"], _HOLDS_ID)]
        return rows

    def recent(self, gone_seconds: float) -> Array:
        """A copy of the rows of the present and of those gone for at most so long, by id, present ones first."""
        heard = self._table["last_seen"] >= self._clock() - gone_seconds
        known = heard & (self._table["state"] != ActorState.UNUSED)
        rows: Array = self._table[known | np.isin(self._table["state"], _HOLDS_ID)]
        return rows[np.lexsort((~np.isin(rows["state"], _HOLDS_ID), rows["actor_id"]))]

    def length_mean(self) -> float:
        """Mean length of the same episodes as ``return_mean``."""
        return float(np.mean(self._lengths)) if self._lengths else 0.0

    def return_mean(self) -> float:
        """Mean return of the last 100 episodes of all actors; 0 before the first."""
        return float(np.mean(self._returns)) if self._returns else 0.0
