"""How much callers may ask for, all together and from one address. No I/O.

One address is limited below the whole, so that it alone leaves room for the others.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_network
from urllib.parse import unquote

from common.clocks import Bucket
from common.errors import CrossborderError
from common.server_config import LimitsConfig
from learner.ingest.counts import IngestCounts

MAX_ADDRESSES = 4096
"""Whoever calls from more is only limited with all the others."""
HEALTH = "/grpc.health.v1.Health/"


class OverLimitError(CrossborderError):
    """More was asked for than a limit allows; later it may be allowed again."""


def address_of(peer: str) -> str:
    """The address in gRPC's name of a peer; of IPv6 its /64, which is one host's to choose from.

    >>> address_of("ipv4:10.0.0.5:50123"), address_of("ipv6:%5B2001:db8::7:1%5D:50123")
    ('10.0.0.5', '2001:db8::/64')
    """
    family, _, rest = unquote(peer).partition(":")
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    if family != "ipv6":
        return host
    mapped = IPv6Address(host).ipv4_mapped  # A socket that listens on [::] sees IPv4 so.
    return str(mapped or ip_network((host, 64), strict=False))


class _Address:
    """What one address has taken."""

    def __init__(self, joins: Bucket, failures: Bucket) -> None:
        self.joins, self.failures = joins, failures
        self.open = Counter[str]()


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
        calls, of_address = config.max_calls or 4 * fleet, config.max_address_calls or 3 * fleet
        health = config.max_health_calls
        self._open_at_most = {"calls": (calls, of_address), "health_calls": (health, -(-health // 4))}
        self._joins = Bucket(config.joins_per_second, 2 * fleet, clock)
        self._addresses = OrderedDict[str, _Address]()

    @contextmanager
    def call(self, method: str, peer: str) -> Iterator[None]:
        """Hold this while a call is open.

        Raises:
            OverLimitError: too many are open, or the address sent too many wrong tokens.
        """
        kind = "health_calls" if method.startswith(HEALTH) else "calls"
        address, open_calls = self._of(peer), self._counts.open_calls
        in_all, of_address = self._open_at_most[kind]
        self._require(not address.failures.is_empty(), "address_failures")
        self._require(open_calls[kind] < in_all, kind)
        self._require(address.open[kind] < of_address, f"address_{kind}")
        for counted in (open_calls, address.open):
            counted[kind] += 1
        try:
            yield
        finally:
            for counted in (open_calls, address.open):
                counted[kind] -= 1

    def join(self, peer: str) -> None:
        """Count a join.

        Raises:
            OverLimitError: there were too many.
        """
        self._require(self._of(peer).joins.take(), "address_joins")
        self._require(self._joins.take(), "joins")

    def failed(self, peer: str) -> None:
        """Count a call with a wrong token."""
        self._of(peer).failures.take()

    def exceeded(self, limit: str) -> OverLimitError:
        """Count that a limit was met, and say so."""
        self._counts.over_limit[limit] += 1
        return OverLimitError(f"over the limit of {limit.replace('_', ' ')}; try again later")

    def _require(self, within: bool, limit: str) -> None:
        if not within:
            raise self.exceeded(limit)

    def _of(self, peer: str) -> _Address:
        name = address_of(peer)
        known = self._addresses.get(name)
        if known is None:
            if len(self._addresses) >= MAX_ADDRESSES:
                self._addresses.popitem(last=False)
            known = self._addresses[name] = self._new()
        self._addresses.move_to_end(name)
        return known

    def _new(self) -> _Address:
        config, failures = self._config, self._config.address_failures_per_second
        return _Address(
            Bucket(config.address_joins_per_second, self._fleet, self._clock),
            Bucket(failures, max(1.0, 10 * failures), self._clock),
        )
