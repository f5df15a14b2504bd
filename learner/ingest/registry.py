"""Who the actors are: ids, seeds, rungs, liveness, statistics. No I/O; kept in the shared actor table."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from common.data import Array
from common.errors import CrossborderError
from common.process.log import LogThrottle
from learner.shared.actor_table import HOLDS_ID, REPORTED, WORKING, ActorState, host_of

log = logging.getLogger(__name__)
GONE_SECONDS: Final = 24 * 3600.0
"""The registry forgets an actor that was lost for this long."""
MAX_RATE = 1e7
"""No figure that an actor reports of itself grows by more than this in a second since it joined: environment steps of
the fastest simulators are below it, and seconds and counts of failures are far below."""
UNSEEN_SECONDS = 86_400.0
"""An actor that was here before this process began may have gone on for this long meanwhile."""
MAX_TOTAL = MAX_RATE * 365 * 86_400
"""What no actor reaches in a year; a higher figure in the table is of no use, and is forgotten."""
INCREDIBLE_LOGGED_EVERY = 10.0
"""Seconds, over all actors."""
MAX_RETURN = float(np.finfo(np.float32).max)
"""Rewards are float32, and so is a return that can be believed."""


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
        join_seconds: an actor that joins for the first time opens its stream within this time, or gives its id back.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        table: Array,
        max_actors: int,
        lost_seconds: float,
        join_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._reported = table[list(REPORTED)]
        self._max_actors = max_actors
        self._lost_seconds, self._join_seconds = lost_seconds, join_seconds
        self._clock = clock
        self._rows = {int(row["incarnation"]): i for i, row in enumerate(table) if row["state"] != ActorState.UNUSED}
        np.minimum(table["last_seen"], clock(), out=table["last_seen"])  # The clock begins anew when the host does.
        self._from_before = set(self._rows)
        back = np.isin(table["state"], (*WORKING, ActorState.BUILDING))  # They get the time to come back.
        table["state"][back], table["last_seen"][back] = ActorState.AWAY, clock()
        self._heal()
        self._since = self._allowance_of_those_here()
        self._incredible = LogThrottle(INCREDIBLE_LOGGED_EVERY, clock)
        self._returns: deque[float] = deque(maxlen=100)
        self._lengths: deque[int] = deque(maxlen=100)
        self._successes: deque[bool] = deque(maxlen=100)

    def _heal(self) -> None:
        """Forget figures that cannot be: earlier releases kept whatever an actor reported."""
        for name in (*REPORTED, "items", "episodes", "behaviour_opt_steps"):
            column = self._table[name]
            impossible = ~((column >= 0) & (column <= MAX_TOTAL))  # NaN too.
            if impossible.any():
                log.warning("actor table: %d values of %s that cannot be are set to 0", impossible.sum(), name)
                column[impossible] = 0
        returns = self._table["last_return"]
        returns[~(np.abs(returns) <= MAX_RETURN)] = 0.0

    def _allowance_of_those_here(self) -> list[float]:
        """For each row, the second on the clock at which its figures would have begun at 0, growing at ``MAX_RATE``."""
        highest = np.max([self._table[name] for name in REPORTED], axis=0)  # [N_ROWS]
        since: list[float] = (self._clock() - UNSEEN_SECONDS - highest / MAX_RATE).tolist()
        return since

    def join(self, incarnation: int, host: str, pid: int, *, name: str = "", version: str = "", former: int = 0) -> int:
        """Enter an actor and return its id: the one it had, or the smallest free one.

        Args:
            incarnation: of the actor process.
            host: and ``pid``, for people who look for it.
            pid: on that host.
            name: of its token.
            version: of its crossborder.
            former: the incarnation whose row this one takes over; ``former`` is unknown from then on. 0 for none.

        Raises:
            TooManyActorsError: no id is free.
        """
        self.expire()
        self.forget_idle()
        if incarnation not in self._rows and former in self._rows:
            self._rows[incarnation] = self._rows.pop(former)
            self._table["incarnation"][self._rows[incarnation]] = incarnation
            if former in self._from_before:
                self._from_before.add(incarnation)
        row = self._rows.get(incarnation)
        if row is None or self._table["state"][row] not in HOLDS_ID:
            row = self._enter(incarnation, self._free_id(), row)
        self._table["host"][row] = host.encode()[:64]
        self._table["pid"][row] = pid
        self._table["name"][row], self._table["version"][row] = name.encode(), version.encode()[:32]
        self._table["last_seen"][row] = self._clock()
        return int(self._table["actor_id"][row])

    def _free_id(self) -> int:
        taken = set(self._table["actor_id"][np.isin(self._table["state"], HOLDS_ID)].tolist())
        free = next((i for i in range(self._max_actors) if i not in taken), None)
        if free is None:
            raise TooManyActorsError(f"all {self._max_actors} actor ids (server.max_actors) are taken")
        return free

    def _enter(self, incarnation: int, actor_id: int, row: int | None) -> int:
        state = ActorState.AWAY  # An actor that was lost is back, with the figures it had.
        if row is None:
            row, state = self._unused_row(), ActorState.JOINED
            self._rows.pop(int(self._table["incarnation"][row]), None)
            self._table[row] = 0
            self._table["incarnation"][row] = incarnation
            self._rows[incarnation] = row
            self._since[row] = self._clock() - 1.0
        self._table["actor_id"][row] = actor_id
        self._table["state"][row] = state
        return row

    def _unused_row(self) -> int:
        """The first row never used, or the one of the actor that has been gone for longest."""
        gone = ~np.isin(self._table["state"], HOLDS_ID)
        return int(np.where(gone, self._table["last_seen"], np.inf).argmin())

    def row_of(self, incarnation: int) -> int | None:
        """The row of an actor that has joined and is not gone."""
        row = self._rows.get(incarnation)
        return row if row is not None and self._table["state"][row] in HOLDS_ID else None

    def was_here_before(self, incarnation: int) -> bool:
        """Whether an ingest process before this one knew this actor."""
        return incarnation in self._from_before

    def is_gone(self, incarnation: int) -> bool:
        """Whether it will never send anything again: it said goodbye, or was not heard of for ``GONE_SECONDS``."""
        row = self._rows.get(incarnation)
        if row is None:
            return False  # Nobody knows.
        state = self.state(row)
        is_silent = self._table["last_seen"][row] < self._clock() - GONE_SECONDS
        return state is ActorState.LEFT or (state is ActorState.LOST and bool(is_silent))

    def actor_id(self, row: int) -> int:
        return int(self._table["actor_id"][row])

    def host(self, row: int) -> str:
        return host_of(self._table[row])

    def state(self, row: int) -> ActorState:
        return ActorState(int(self._table["state"][row]))

    def set_state(self, row: int, state: ActorState) -> None:
        self._table["state"][row] = state
        self._table["last_seen"][row] = self._clock()

    def seen(self, row: int, figures: tuple[float, ...], *, building: bool) -> None:
        """Note a sign of life with the actor's own figures, those of ``REPORTED``, and whether it builds its parts.

        Figures count as far as they can be true. Only the state of an actor with a stream changes: a message of an
        older stream may come after the newest ended.
        """
        now = self._clock()
        self._table["last_seen"][row] = now
        if self._table["state"][row] in (ActorState.ONLINE, ActorState.BUILDING):
            self._table["state"][row] = ActorState.BUILDING if building else ActorState.ONLINE
        most = min(MAX_RATE * (now - self._since[row]), MAX_TOTAL)
        if max(figures) > most:
            figures = self._believable(row, figures, most)
        self._reported[row] = figures

    def _believable(self, row: int, figures: tuple[float, ...], most: float) -> tuple[float, ...]:
        """The figures with totals of at most ``most``; bytes in a spool are no total."""
        limits = [MAX_TOTAL if name == "spool_bytes" else most for name in REPORTED]
        believed = tuple(map(min, figures, limits))
        if believed != figures and (missed := self._incredible.due()) is not None:
            found = dict(zip(REPORTED, figures, strict=True))
            log.warning("actor %d reports more than can be: %s (%d more before it)", self.actor_id(row), found, missed)
        return believed

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

    def note_successes(self, successes: Sequence[bool]) -> None:
        """Note which of the episodes that came with a batch succeeded, of those that say so."""
        self._successes.extend(successes)

    def expire(self) -> list[int]:
        """Give up actors that were silent for too long; their ids."""
        silent = self._table["last_seen"] < self._clock() - self._lost_seconds
        lost = np.flatnonzero(silent & (self._table["state"] == ActorState.AWAY))
        self._table["state"][lost] = ActorState.LOST
        return [int(i) for i in self._table["actor_id"][lost]]

    def forget_idle(self) -> list[int]:
        """Forget actors that have joined and opened no stream in time; their ids."""
        silent = self._table["last_seen"] < self._clock() - self._join_seconds
        idle = np.flatnonzero(silent & (self._table["state"] == ActorState.JOINED))
        actor_ids = [int(i) for i in self._table["actor_id"][idle]]
        for incarnation in self._table["incarnation"][idle]:
            del self._rows[int(incarnation)]
        self._table[idle] = 0
        return actor_ids

    def count(self, state: ActorState) -> int:
        return int((self._table["state"] == state).sum())

    def total(self, field: str) -> int:
        """The sum over all actor processes; it cannot overflow, since no figure is above ``MAX_TOTAL``."""
        return int(self._table[field].sum())

    def present(self) -> Array:
        """A copy of the rows of those that hold an id."""
        rows: Array = self._table[np.isin(self._table["state"], HOLDS_ID)]
        return rows

    def working(self) -> Array:
        """A copy of the rows of actors that may have items to hand over, by id."""
        rows: Array = self._table[np.isin(self._table["state"], WORKING)]
        return rows[np.argsort(rows["actor_id"])]

    def recent(self, gone_seconds: float) -> Array:
        """A copy of the rows of the present and of those gone for at most so long, by id, present ones first."""
        heard = self._table["last_seen"] >= self._clock() - gone_seconds
        known = heard & (self._table["state"] != ActorState.UNUSED)
        rows: Array = self._table[known | np.isin(self._table["state"], HOLDS_ID)]
        return rows[np.lexsort((~np.isin(rows["state"], HOLDS_ID), rows["actor_id"]))]

    @property
    def has_episodes(self) -> bool:
        """Whether an episode has been reported to this process."""
        return bool(self._returns)

    def success_mean(self) -> float:
        """Share of the last 100 episodes that say so which succeeded; 0 before the first."""
        return float(np.mean(self._successes)) if self._successes else 0.0

    def length_mean(self) -> float:
        """Mean length of the same episodes as ``return_mean``."""
        return float(np.mean(self._lengths)) if self._lengths else 0.0

    def return_mean(self) -> float:
        """Mean return of the last 100 episodes of all actors; 0 before the first."""
        return float(np.mean(self._returns)) if self._returns else 0.0
