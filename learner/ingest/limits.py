"""How much callers may ask for, all together and each account. No I/O.

An account is a named token, or an address where callers have no name: see ``Caller.account``. One account is limited
below the whole, so that it alone leaves room for the others. Calls without a valid token have an account of their own,
by address, and cost nobody else anything.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.config.server_config import LimitsConfig
from common.errors import CrossborderError
from common.process.clocks import Bucket
from learner.ingest.caller import ACTORS, HEALTH, Caller, address_of
from learner.ingest.counts import IngestCounts

MAX_ACCOUNTS = 4096
"""Callers beyond this number are only limited together with all the others."""


class OverLimitError(CrossborderError):
    """More was asked for than a limit allows; later it may be allowed again."""


class _Account:
    """What one account has taken."""

    def __init__(self, joins: Bucket, failures: Bucket) -> None:
        self.joins, self.failures = joins, failures
        self.open_calls = 0


class _YieldingPlaces:
    """Places for short calls. When all are taken, the account that has most gives up its oldest.

    So a new call always gets a place: nobody keeps others out by holding calls open.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._held = dict[object, tuple[str, Callable[[], None]]]()  # The oldest first.

    def take(self, account: str, give_up: Callable[[], None]) -> object:
        """Take a place; ``give_up`` is called when another call needs it."""
        if len(self._held) >= self._count:
            self._make_room()
        place = object()
        self._held[place] = account, give_up
        return place

    def _make_room(self) -> None:
        ((most, _),) = Counter(account for account, _ in self._held.values()).most_common(1)
        oldest = next(place for place, (account, _) in self._held.items() if account == most)
        _, give_up = self._held.pop(oldest)
        give_up()

    def release(self, place: object) -> None:
        """Give a place back; nothing happens if it was given up."""
        self._held.pop(place, None)


class Limits:
    """Limits on calls and joins; each refusal is counted.

    Args:
        config: the limits.
        fleet: how many actors there may be; those left open are multiples of it.
        counts: of what is open and of what was refused.
        clock: seconds, monotonic.
    """

    def __init__(
        self, config: LimitsConfig, fleet: int, counts: IngestCounts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._fleet, self._counts, self._clock = config, fleet, counts, clock
        self._max_calls, self._max_account_calls = config.max_calls or 4 * fleet, config.max_address_calls or 3 * fleet
        self._health_places = _YieldingPlaces(config.max_health_calls)
        self._admin_places = _YieldingPlaces(config.max_admin_calls)
        self._joins = Bucket(config.joins_per_second, 2 * fleet, clock)
        self._accounts = OrderedDict[str, _Account]()

    @contextmanager
    def call(self, caller: Caller, end: Callable[[OverLimitError], None]) -> Iterator[None]:
        """Hold this while a call is open; a short call may be told to ``end`` in favour of another.

        Raises:
            OverLimitError: too many of the actors' calls are open.
        """
        if caller.method.startswith(ACTORS):
            with self._actors_call(caller):
                yield
            return
        is_health = caller.method.startswith(HEALTH)
        kind, places = ("health_calls", self._health_places) if is_health else ("admin_calls", self._admin_places)
        place = places.take(caller.account, lambda: end(self.exceeded(kind)))
        self._counts.open_calls[kind] += 1
        try:
            yield
        finally:
            self._counts.open_calls[kind] -= 1
            places.release(place)

    @contextmanager
    def _actors_call(self, caller: Caller) -> Iterator[None]:
        account, open_calls = self._of(caller.account), self._counts.open_calls
        self._require(open_calls["calls"] < self._max_calls, "calls")
        self._require(account.open_calls < self._max_account_calls, "address_calls")
        open_calls["calls"] += 1
        account.open_calls += 1
        try:
            yield
        finally:
            open_calls["calls"] -= 1
            account.open_calls -= 1

    def join(self, caller: Caller) -> None:
        """Count a join.

        Raises:
            OverLimitError: there were too many.
        """
        self._require(self._of(caller.account).joins.take(), "address_joins")
        self._require(self._joins.take(), "joins")

    def failed(self, peer: str) -> None:
        """Count a call without a valid token.

        Raises:
            OverLimitError: there were too many from its address.
        """
        self._require(self._of(address_of(peer)).failures.take(), "address_failures")

    def exceeded(self, limit: str) -> OverLimitError:
        """Count that a limit was met, and say so."""
        self._counts.over_limit[limit] += 1
        return OverLimitError(f"over the limit of {limit.replace('_', ' ')}; try again later")

    def _require(self, within: bool, limit: str) -> None:
        if not within:
            raise self.exceeded(limit)

    def _of(self, name: str) -> _Account:
        known = self._accounts.get(name)
        if known is None:
            if len(self._accounts) >= MAX_ACCOUNTS:
                self._accounts.popitem(last=False)
            known = self._accounts[name] = self._new()
        self._accounts.move_to_end(name)
        return known

    def _new(self) -> _Account:
        config, failures = self._config, self._config.address_failures_per_second
        return _Account(
            Bucket(config.address_joins_per_second, self._fleet, self._clock),
            Bucket(failures, max(1.0, 10 * failures), self._clock),
        )
