"""The actors that ingest knows: their ids, states and figures, kept in the shared actor table. No I/O."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np

from common.data import Array
from common.errors import CrossborderError
from common.process.log import LogThrottle
from learner.shared.actor_table import HOLDS_ID, HOST_BYTES, REPORTED, WORKING, ActorState, host_of

log = logging.getLogger(__name__)
GONE_SECONDS: Final = 24 * 3600.0
"""The registry forgets an actor that was lost for this long."""
MAX_RATE = 1e7
"""No figure that an actor reports of itself grows by more than this in a second since it joined: the environment steps
of the fastest simulators are below this rate, and seconds and counts of failures are far below."""
UNSEEN_SECONDS = 86_400.0
"""An actor that was here before this process began may have gone on for this long while no ingest process ran."""
MAX_TOTAL = MAX_RATE * 365 * 86_400
"""No actor reaches this figure within a year; a higher figure in the table is wrong and is set to 0."""
INCREDIBLE_LOGGED_EVERY = 10.0
"""Seconds between two lines of the log, over all actors."""
MAX_RETURN = float(np.finfo(np.float32).max)
"""Rewards are float32, so a return beyond the largest float32 is wrong."""
_SUMMED: Final = (*REPORTED, "items", "episodes")
# Numbers of states, for each message: Python 3.11 takes a microsecond to find a member of an enum.
_HOLDS_ID: Final = frozenset(map(int, HOLDS_ID))
_ONLINE, _BUILDING = int(ActorState.ONLINE), int(ActorState.BUILDING)


class TooManyActorsError(CrossborderError):
    """Every actor id is taken."""


class Registry:
    """The rows of the actor table, by incarnation. It takes over the rows that an earlier ingest process wrote.

    Actor processes get rows 0, 1, 2, … in the order of joining and keep them. The id of an actor that is gone passes on
    to the next actor; when the table is full, the row of the actor that has been gone for longest passes on too. The
    last row is no actor's: it holds the sums of all actors whose rows have passed on, so that no total ever falls.

    This process is the only writer of the table. Other processes and the metrics' thread read it at any time without a
    lock, so no decision here may depend on what they have read.

    Args:
        table: see ``map_actor_table``.
        max_actors: number of actor ids.
        lost_seconds: an actor that is silent for this long loses its id.
        join_seconds: an actor that joins for the first time opens its stream within this time, or loses its id.
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
        self._state, self._last_seen, self._items = table["state"], table["last_seen"], table["items"]
        self._behaviour_opt_steps, self._names = table["behaviour_opt_steps"], table["name"]
        self._reported = table[list(REPORTED)]
        self._max_actors = max_actors
        self._lost_seconds, self._join_seconds = lost_seconds, join_seconds
        self._clock = clock
        self._rows = {int(row["incarnation"]): i for i, row in enumerate(table) if row["state"] != ActorState.UNUSED}
        # After a restart of the host its clock begins at 0.
        np.minimum(table["last_seen"], clock(), out=table["last_seen"])
        self._from_before = set(self._rows.values())
        # Their streams ended with the ingest process before this one. They get the full time to come back.
        away = np.isin(table["state"], (*WORKING, ActorState.BUILDING))
        table["state"][away], table["last_seen"][away] = ActorState.AWAY, clock()
        highest = np.max([table[name] for name in REPORTED], axis=0)  # [N_ROWS]
        self._growing_since: list[float] = (clock() - UNSEEN_SECONDS - highest / MAX_RATE).tolist()
        """For each row, the second on the clock at which its figures would have begun at 0, growing at ``MAX_RATE``."""
        self._incredible_log = LogThrottle(INCREDIBLE_LOGGED_EVERY, clock)
        self._returns: deque[float] = deque(maxlen=100)
        self._lengths: deque[int] = deque(maxlen=100)
        self._successes: deque[bool] = deque(maxlen=100)

    def join(
        self,
        incarnation: int,
        host: str,
        pid: int,
        *,
        name: str = "",
        version: str = "",
        former: int = 0,
        wanted: int | None = None,
        closed: Collection[int] = (),
        evaluates: bool = False,
    ) -> int:
        """Enter an actor and return its id: the id that it had, the id that it wants, or the smallest free id.

        An actor that evaluates gets the largest free id, since ids say how much the actors that record explore.

        Args:
            incarnation: of the actor process.
            host: of the process, for people who look for it.
            pid: on that host.
            name: of its token.
            version: of its crossborder.
            former: the incarnation whose row this one takes over; 0 for none. From then on the former incarnation is
                unknown.
            wanted: the id that a new actor must have, below ``max_actors``. An actor that is away is given up for it.
                None takes a free id.
            closed: ids that are not free, although nobody has them.
            evaluates: whether it scores models and records nothing.

        Raises:
            TooManyActorsError: no id is free, or another actor has the wanted one.
        """
        self.expire()
        self.forget_idle()
        if incarnation not in self._rows and former in self._rows:
            self._rows[incarnation] = self._rows.pop(former)
            self._table["incarnation"][self._rows[incarnation]] = incarnation
        row = self._rows.get(incarnation)
        if row is None or self._table["state"][row] not in HOLDS_ID:
            actor_id = self._find_free_id(closed, evaluates) if wanted is None else self._vacate(wanted, name)
            row = self._enter(incarnation, actor_id, row)
        self._table["host"][row] = host.encode()[:HOST_BYTES]
        self._table["pid"][row] = pid
        self._table["name"][row], self._table["version"][row] = name.encode(), version.encode()[:32]
        self._table["last_seen"][row] = self._clock()
        return int(self._table["actor_id"][row])

    def _find_free_id(self, closed: Collection[int], evaluates: bool) -> int:
        taken = {*closed, *self._table["actor_id"][np.isin(self._table["state"], HOLDS_ID)].tolist()}
        ids = range(self._max_actors)
        free = next((i for i in (reversed(ids) if evaluates else ids) if i not in taken), None)
        if free is None:
            raise TooManyActorsError(f"all {self._max_actors} actor ids (server.max_actors) are taken or cordoned")
        return free

    def _vacate(self, actor_id: int, name: str) -> int:
        """Return an id once no actor has it: an actor of the same name that is away loses it."""
        for row in np.flatnonzero((self._table["actor_id"] == actor_id) & np.isin(self._table["state"], HOLDS_ID)):
            state = self.state(int(row))
            if state is not ActorState.AWAY or self.name(int(row)) != name:
                host, pid = self._table["host"][row].decode(errors="replace"), self._table["pid"][row]
                raise TooManyActorsError(
                    f"actor id {actor_id}: expected that nobody has it, found an actor on {host} (pid {pid}), which is "
                    f"{state.name.lower()}"
                )
            self._table["state"][row] = ActorState.LOST
            log.warning("actor %d is lost: another process has come in its place", actor_id)
        return actor_id

    def _enter(self, incarnation: int, actor_id: int, row: int | None) -> int:
        state = ActorState.AWAY  # An actor that was lost is back, and keeps its figures.
        if row is None:
            # The first row that was never used, or else the row of the actor that has been gone for longest.
            gone = ~np.isin(self._table["state"][:-1], HOLDS_ID)
            row, state = int(np.where(gone, self._table["last_seen"][:-1], np.inf).argmin()), ActorState.JOINED
            self._rows.pop(int(self._table["incarnation"][row]), None)
            self._from_before.discard(row)
            for column in (self._table[name] for name in _SUMMED):
                column[[row, -1]] = 0, column[-1] + column[row]
            self._table[row] = 0
            self._table["incarnation"][row] = incarnation
            self._rows[incarnation] = row
            self._growing_since[row] = self._clock() - 1.0
        self._table["actor_id"][row] = actor_id
        self._table["state"][row] = state
        return row

    def row_of(self, incarnation: int) -> int | None:
        """The row of an actor that has joined and is not gone."""
        row = self._rows.get(incarnation)
        return row if row is not None and self._state.item(row) in _HOLDS_ID else None

    def is_present(self, incarnation: int) -> bool:
        """Whether an actor holds an id now."""
        return self.row_of(incarnation) is not None

    def may_return(self, incarnation: int) -> bool:
        """Whether an actor is known and has not said goodbye: it may still have rows to hand over."""
        row = self._rows.get(incarnation)
        return row is not None and self.state(row) is not ActorState.LEFT

    def was_here_before(self, incarnation: int) -> bool:
        """Whether an ingest process before this one knew this actor."""
        return self._rows.get(incarnation) in self._from_before

    def is_gone(self, incarnation: int) -> bool:
        """Whether an actor will never send anything again: it said goodbye, or was lost for ``GONE_SECONDS``."""
        row = self._rows.get(incarnation)
        if row is None:
            return False  # The registry does not know it, so it may still be there.
        state = self.state(row)
        is_silent = self._table["last_seen"][row] < self._clock() - GONE_SECONDS
        return state is ActorState.LEFT or (state is ActorState.LOST and bool(is_silent))

    def least_needed(self, incarnations: Sequence[int]) -> int:
        """Choose who gives up its cursor of the replay, so that no name can keep the others' actors out.

        Args:
            incarnations: of processes that hold no id, at least one, in the order in which to choose.

        Returns:
            The first that this table has forgotten or that another process has replaced; if there is none, the first
            of the name that has the most of them.
        """
        names = list[bytes]()
        for incarnation in incarnations:
            row = self._rows.get(incarnation)
            if row is None:
                return incarnation
            names.append(self._names[row])
        ((most, _),) = Counter(names).most_common(1)
        return incarnations[names.index(most)]

    def name(self, row: int) -> str:
        """The name of an actor's token; empty if it has none."""
        name: bytes = self._names[row]
        return name.decode(errors="replace")

    def actor_id(self, row: int) -> int:
        return int(self._table["actor_id"][row])

    def host(self, row: int) -> str:
        return host_of(self._table[row])

    def state(self, row: int) -> ActorState:
        return ActorState(int(self._table["state"][row]))

    def set_state(self, row: int, state: ActorState) -> None:
        self._table["state"][row] = state
        self._table["last_seen"][row] = self._clock()

    def note_report(self, row: int, figures: tuple[float, ...], *, building: bool) -> None:
        """Note a report, which is a sign of life too.

        Only the state of an actor with an open stream changes: a message of an older stream may still come after the
        newest stream has ended.

        Args:
            row: of the actor.
            figures: of the actor, in the order of ``REPORTED``; a figure that is too high to be true becomes the
                highest possible figure.
            building: whether the actor still builds its environment and agent.
        """
        now = self._clock()
        self._last_seen[row] = now
        if self._state.item(row) in (_ONLINE, _BUILDING):
            self._state[row] = _BUILDING if building else _ONLINE
        most = min(MAX_RATE * (now - self._growing_since[row]), MAX_TOTAL)
        if max(figures) > most:
            figures = self._limit_figures(row, figures, most)
        self._reported[row] = figures

    def _limit_figures(self, row: int, figures: tuple[float, ...], most: float) -> tuple[float, ...]:
        """The figures, each at most ``most``, except bytes in a spool and lateness: they do not grow with time."""
        limits = [MAX_TOTAL if name in ("spool_bytes", "lateness_p99_seconds") else most for name in REPORTED]
        limited = tuple(map(min, figures, limits))
        if limited != figures and (missed := self._incredible_log.due()) is not None:
            found = dict(zip(REPORTED, figures, strict=True))
            log.warning("actor %d reports too high figures: %s (%d more before it)", self.actor_id(row), found, missed)
        return limited

    def note_batch(
        self, row: int, steps: int, behaviour_opt_steps: int, returns: Sequence[float], lengths: Sequence[int]
    ) -> int:
        """Note a batch and its episodes, oldest first; return the steps of all batches of its actor."""
        self._items[row] += steps
        self._behaviour_opt_steps[row] = behaviour_opt_steps
        if returns:
            self._table["episodes"][row] += len(returns)
            self._table["last_return"][row] = returns[-1]
            self._returns.extend(returns)
            self._lengths.extend(lengths)
        return int(self._items[row])

    def note_successes(self, successes: Sequence[bool]) -> None:
        """Note which of a batch's episodes succeeded; episodes that do not report it are left out."""
        self._successes.extend(successes)

    def expire(self) -> list[int]:
        """Give up actors that have been away for too long; return their ids."""
        silent = self._table["last_seen"] < self._clock() - self._lost_seconds
        lost = np.flatnonzero(silent & (self._table["state"] == ActorState.AWAY))
        self._table["state"][lost] = ActorState.LOST
        return [int(i) for i in self._table["actor_id"][lost]]

    def forget_idle(self) -> list[int]:
        """Forget actors that have joined for the first time and opened no stream in time; return their ids."""
        silent = self._table["last_seen"] < self._clock() - self._join_seconds
        idle = np.flatnonzero(silent & (self._table["state"] == ActorState.JOINED))
        actor_ids = [int(i) for i in self._table["actor_id"][idle]]
        for incarnation in self._table["incarnation"][idle]:
            del self._rows[int(incarnation)]
        self._table[idle] = 0
        return actor_ids

    def count(self, state: ActorState) -> int:
        return int((self._table["state"] == state).sum())

    def total(self, field: str) -> float:
        """The sum of a column over all actor processes; no figure is above ``MAX_TOTAL``, so it cannot overflow.

        Returns:
            An int for a column of integers.
        """
        total: float = self._table[field].sum().item()
        return total

    def present_rows(self) -> Array:
        """A copy of the rows of actors that hold an id."""
        rows: Array = self._table[np.isin(self._table["state"], HOLDS_ID)]
        return rows

    def online_rows(self) -> Array:
        """A copy of the rows of actors with an open stream that have built their parts."""
        rows: Array = self._table[self._table["state"] == ActorState.ONLINE]
        return rows

    def working_rows(self) -> Array:
        """A copy of the rows of actors that may have rows to hand over, by id."""
        rows: Array = self._table[np.isin(self._table["state"], WORKING)]
        return rows[np.argsort(rows["actor_id"])]

    def recent_rows(self, gone_seconds: float) -> Array:
        """A copy of the rows of actors that hold an id, and of those that have been gone for at most ``gone_seconds``.

        They are sorted by id; among actors with the same id, the actor that holds it now comes first.
        """
        is_recent = self._table["last_seen"] >= self._clock() - gone_seconds
        known = is_recent & (self._table["state"] != ActorState.UNUSED)
        rows: Array = self._table[known | np.isin(self._table["state"], HOLDS_ID)]
        return rows[np.lexsort((~np.isin(rows["state"], HOLDS_ID), rows["actor_id"]))]

    @property
    def has_episodes(self) -> bool:
        """Whether an episode has been reported to this process."""
        return bool(self._returns)

    def success_mean(self) -> float:
        """Share of successes among the last 100 episodes that say whether they succeeded; 0 before the first."""
        return float(np.mean(self._successes)) if self._successes else 0.0

    def length_mean(self) -> float:
        """Mean length, in environment steps, of the same episodes as ``return_mean``."""
        return float(np.mean(self._lengths)) if self._lengths else 0.0

    def return_mean(self) -> float:
        """Mean return of the last 100 episodes of all actors; 0 before the first."""
        return float(np.mean(self._returns)) if self._returns else 0.0
