"""How much one caller may take while others need the learner too. Decisions without I/O; the caller passes the clock.

``CallLimits`` and ``AddressIds`` refuse calls and joins. They count by account: a named token, or the address of
callers without a name (``Caller.account``). Unless all actors may share one, an account may take less than all accounts
together, so it always leaves room for others. Calls without a valid token are counted by address and cost no other
caller anything.

``Shares`` and ``ModelRepeats`` are quotas. A quota refuses nothing: an actor over its quota only waits longer for
its own acknowledgement or model.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from common.data import ModelVersion
from common.process.clocks import Bucket, Buckets
from common.wire.address import peer_address
from common.wire.tokens import WITHOUT_NAME
from learner.ingest.gate import ACTOR_METHODS, CLIENT_METHODS, HEALTH_METHODS, Caller
from learner.ingest.refusals import IngestCounts, OverLimitError

MAX_ACCOUNTS = 4096
"""The most accounts whose joins and failures are remembered; then the account that called longest ago is forgotten."""
ACTIVE_SECONDS = 10.0
"""An actor that has stored nothing for this long counts as inactive."""
RENEWAL_SECONDS = 60.0
"""An actor beyond its share needs at least this long to replace the whole replay."""
REPEATS_PER_SECOND, REPEATS_AT_ONCE = 1.0, 5.0
"""Requests of one connection for a model, or a candidate, that the connection has received already."""
CALLS_PER_ACTOR, ACCOUNT_CALLS_PER_ACTOR = 4, 3
"""Open calls for each of ``server.max_actors``: an actor has a stream and asks for a model or joins; one account leaves
a quarter to others."""
HEALTH_CALLS, ADMIN_CALLS = 32, 16
"""Places for short calls. A call beyond them ends an older one, so a larger number would let no more callers in."""
JOINS_PER_SECOND, ACCOUNT_JOINS_PER_SECOND = 100.0, 50.0
"""In the long run; a fleet that comes back joins at once. A join takes ingest a millisecond."""
FAILURES_PER_SECOND, FAILURES_AT_ONCE = 10.0, 100.0
"""Wrong tokens from one address that are told apart from other refusals: a host's own mistakes, but no guessing."""
MAX_CONNECTIONS = 8192
"""Connections that are remembered: as many as there may be for 4,096 actors."""


class YieldingPlaces:
    """Places for short calls. When all are taken, the account that has most places gives up its oldest one.

    So a new call always gets a place, and no caller keeps others out by holding calls open.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._held = dict[object, tuple[str, Callable[[], None]]]()  # The oldest first.

    def take(self, account: str, give_up: Callable[[], None]) -> object:
        """Take a place; ``give_up`` is called when another call needs it."""
        if len(self._held) >= self._count:
            ((most, _),) = Counter(account for account, _ in self._held.values()).most_common(1)
            oldest = next(place for place, (account, _) in self._held.items() if account == most)
            _, evict = self._held.pop(oldest)
            evict()
        place = object()
        self._held[place] = account, give_up
        return place

    def release(self, place: object) -> None:
        """Give a place back; nothing happens if the place was given up before."""
        self._held.pop(place, None)


class CallLimits:
    """Limits on open calls and on joins; each refusal is counted.

    Args:
        fleet: how many actors there may be, of which the limits are multiples.
        may_share_address: whether one account may have as many calls and joins as all accounts together.
        counts: of open calls and of refusals.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        fleet: int,
        counts: IngestCounts,
        *,
        may_share_address: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts = counts
        self._max_calls, joins_at_once = CALLS_PER_ACTOR * fleet, 2 * fleet
        self._joins = Bucket(JOINS_PER_SECOND, joins_at_once, clock)
        if may_share_address:
            self._max_account_calls = self._max_calls
            account_rate: tuple[float, float] = JOINS_PER_SECOND, joins_at_once
        else:
            self._max_account_calls = ACCOUNT_CALLS_PER_ACTOR * fleet
            account_rate = ACCOUNT_JOINS_PER_SECOND, fleet
        self._health_places, self._admin_places = YieldingPlaces(HEALTH_CALLS), YieldingPlaces(ADMIN_CALLS)
        self._open = Counter[str]()
        """By account, its open calls; without accounts that have none."""
        self._account_joins = Buckets(*account_rate, MAX_ACCOUNTS, clock)
        self._failures = Buckets(FAILURES_PER_SECOND, FAILURES_AT_ONCE, MAX_ACCOUNTS, clock)

    @contextmanager
    def call(self, caller: Caller, end: Callable[[OverLimitError], None]) -> Iterator[None]:
        """Hold a place while a call is open. ``end`` is called to end a short call whose place another call gets.

        Raises:
            OverLimitError: too many calls of actors are open.
        """
        if caller.method.startswith((ACTOR_METHODS, CLIENT_METHODS)):
            with self._actor_call(caller):
                yield
            return
        is_health = caller.method.startswith(HEALTH_METHODS)
        kind, places = ("health_calls", self._health_places) if is_health else ("admin_calls", self._admin_places)
        place = places.take(caller.account, lambda: end(self.count_refusal(kind)))
        self._counts.open_calls[kind] += 1
        try:
            yield
        finally:
            self._counts.open_calls[kind] -= 1
            places.release(place)

    @contextmanager
    def _actor_call(self, caller: Caller) -> Iterator[None]:
        account, open_calls = caller.account, self._counts.open_calls
        self._require(open_calls["calls"] < self._max_calls, "calls")
        self._require(self._open[account] < self._max_account_calls, "address_calls")
        open_calls["calls"] += 1
        self._open[account] += 1
        try:
            yield
        finally:
            open_calls["calls"] -= 1
            self._open -= Counter([account])

    def count_join(self, caller: Caller) -> None:
        """Count a join.

        Raises:
            OverLimitError: there are too many joins, of this account or of all accounts.
        """
        self._require(self._account_joins.take(caller.account), "address_joins")
        self._require(self._joins.take(), "joins")

    def count_failure(self, peer: str) -> None:
        """Count a call without a valid token.

        Raises:
            OverLimitError: there are too many such calls from the peer's address.
        """
        self._require(self._failures.take(peer_address(peer)), "address_failures")

    def count_refusal(self, limit: str) -> OverLimitError:
        """Count a call that is refused for a limit, such as one of ``CALL_LIMITS``; return the error to raise."""
        self._counts.over_limit[limit] += 1
        return OverLimitError(f"over the limit of {limit.replace('_', ' ')}; try again later")

    def _require(self, within: bool, limit: str) -> None:
        if not within:
            raise self.count_refusal(limit)


class AddressIds:
    """How many actor ids the actors of one account may hold (``server.max_address_actors``).

    Args:
        at_most: ids of one account.
        holds_id: whether an incarnation holds an id now.
    """

    def __init__(self, at_most: int, holds_id: Callable[[int], bool]) -> None:
        self._at_most, self._holds_id = at_most, holds_id
        self._account: dict[int, str] = {}
        """By incarnation. Incarnations without an id are dropped whenever the dictionary has doubled."""
        self._noted = Counter[str]()
        """By account, how many incarnations ``_account`` has, with and without an id."""
        self._prune_at = 64

    def has_room(self, account: str, incarnation: int, former: int = 0) -> bool:
        """Whether the incarnation may join from this account, in the place of the incarnation ``former`` if any."""
        if self._noted[account] < self._at_most:  # This saves a count of the whole fleet at each join.
            return True
        others = (one for one, its in self._account.items() if its == account and one not in (incarnation, former))
        return sum(map(self._holds_id, others)) < self._at_most

    def note_join(self, account: str, incarnation: int) -> None:
        """Note that the incarnation has joined from this account; its former account no longer counts it."""
        if incarnation in self._account:
            self._noted[self._account[incarnation]] -= 1
        self._account[incarnation] = account
        self._noted[account] += 1
        if len(self._account) >= self._prune_at:
            self._account = {one: its for one, its in self._account.items() if self._holds_id(one)}
            self._noted = Counter(self._account.values())
            self._prune_at = max(64, 2 * len(self._account))


class ReplayShare:
    """How much of the replay one sender may fill while others store too (``server.replay_share``).

    The window is the last ``capacity`` rows, as an exponential mean: after ``capacity`` later rows, a row counts
    1/e. An actor that holds more of the window than ``multiple`` times the mean of the other active actors may go on at
    one capacity per ``RENEWAL_SECONDS``. It never waits for the other actors, so an actor that pauses stalls no other.

    Args:
        capacity: rows that the replay holds.
        multiple: see above; None sets no limit.
        clock: seconds, monotonic.
    """

    def __init__(self, capacity: int, multiple: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity, self._multiple, self._clock = capacity, multiple or math.inf, clock
        self._inserted = 0
        self._window: dict[Hashable, tuple[float, int]] = {}
        """By actor: its rows in the window, and the number of all rows when they were counted."""
        self._active = OrderedDict[Hashable, float]()
        """When each active actor stored last, the longest ago first."""
        self._free_at: dict[Hashable, float] = {}

    def note_batch(self, actor: Hashable, rows: int) -> None:
        """Note that an actor, or a name's actors, have stored a batch."""
        now = self._clock()
        self._inserted += rows
        self._active[actor] = now
        self._active.move_to_end(actor)
        while next(iter(self._active.values())) < now - ACTIVE_SECONDS:
            self._active.popitem(last=False)
        held, counted_at = self._window.get(actor, (0.0, self._inserted))
        held = held * math.exp((counted_at - self._inserted) / self._capacity) + rows
        self._window[actor] = held, self._inserted
        if held > self._capacity * self._max_share():
            begin = max(now, self._free_at.get(actor, now))
            self._free_at[actor] = begin + rows * RENEWAL_SECONDS / self._capacity

    def note_end(self, actor: Hashable) -> None:
        """Note that the actor's stream has ended: the others no longer share the replay with it."""
        self._active.pop(actor, None)

    def seconds_to_wait(self, actor: Hashable) -> float:
        """Seconds that the actor must still wait for its acknowledgement; 0 for none."""
        free_at = self._free_at.get(actor)
        if free_at is None:
            return 0.0
        left = free_at - self._clock()
        if left <= 0:
            del self._free_at[actor]
        return max(0.0, left)

    def _max_share(self) -> float:
        """The part of the window that one actor may hold; an actor alone may hold all of it."""
        others = len(self._active) - 1
        return self._multiple / (self._multiple + others) if others and self._multiple < math.inf else math.inf


class Shares:
    """The shares of actors, and of names: a name has one share, however many actors join with it.

    An actor without a name counts for itself among the names. So the many actors of one shared token do not wait, and
    neither do those of a name that nobody else competes with.

    Args:
        capacity: see ``ReplayShare``.
        multiple: see ``ReplayShare``.
        clock: seconds, monotonic.
    """

    def __init__(self, capacity: int, multiple: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._of_actors = ReplayShare(capacity, multiple, clock)
        self._of_names = ReplayShare(capacity, multiple, clock)

    def note_batch(self, row: int, name: str, rows: int) -> None:
        """Note that the actor in this row of the actor table, with a token of this name, has stored a batch."""
        self._of_actors.note_batch(row, rows)
        self._of_names.note_batch(holder_of(row, name), rows)

    def note_end(self, row: int) -> None:
        """Note that the actor's stream has ended. A name counts as active for a while, since others may have it too."""
        self._of_actors.note_end(row)
        self._of_names.note_end(row)

    def seconds_to_wait(self, row: int, name: str) -> float:
        """Seconds that the actor must still wait for its acknowledgement; 0 for none."""
        return max(self._of_actors.seconds_to_wait(row), self._of_names.seconds_to_wait(holder_of(row, name)))


def holder_of(row: int, name: str) -> Hashable:
    """Who has one share: all actors with tokens of a name together, and each actor without a name for itself."""
    return row if name in WITHOUT_NAME else name


class ModelRepeats:
    """Limits how often one connection may ask again for a model that it has received already.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked = OrderedDict[tuple[str, bool | ModelVersion], tuple[ModelVersion, float]]()
        """By reader: the model of its last answer, and the time until which its repeats are spent."""

    def count_request(self, reader: tuple[str, bool | ModelVersion], newest: ModelVersion) -> float:
        """Count a request for the newest model; return the seconds that the answer must wait.

        Args:
            reader: a connection, and whether it asks for candidates instead of models for acting, or the version of
                the opponent that it asks for.
            newest: the model, or the candidate, of the answer.
        """
        now = self._clock()
        version, spent_until = self._asked.get(reader, (None, 0.0))
        if version == newest:
            spent_until = max(spent_until, now) + 1 / REPEATS_PER_SECOND
        self._asked[reader] = newest, spent_until
        self._asked.move_to_end(reader)
        if len(self._asked) > MAX_CONNECTIONS:
            self._asked.popitem(last=False)
        return max(0.0, spent_until - now - REPEATS_AT_ONCE / REPEATS_PER_SECOND) if version == newest else 0.0
