from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from common.server_config import LimitsConfig
from learner.ingest.counts import IngestCounts
from learner.ingest.limits import MAX_ADDRESSES, Limits, OverLimitError, address_of
from tests.common.test_clocks import Clock

JOIN, HEALTH = "/crossborder.v1.LearnerService/Join", "/grpc.health.v1.Health/Check"
FLEET = 16


def peer(host: int, port: int = 50000) -> str:
    return f"ipv4:10.0.{host >> 8}.{host & 255}:{port}"


class Limited(Limits):
    """With a clock that is set by hand, and counts to look at."""

    def __init__(self, **config: Any) -> None:
        self.clock, self.counts = Clock(), IngestCounts()
        super().__init__(LimitsConfig(**config), FLEET, self.counts, self.clock)

    def joins(self, times: int, host: int = 1) -> int:
        """How many of so many joins are let in."""
        refused = 0
        for _ in range(times):
            try:
                self.join(peer(host))
            except OverLimitError:
                refused += 1
        return times - refused

    def hold(self, stack: ExitStack, host: int, times: int = 1, method: str = JOIN) -> None:
        for port in range(times):
            stack.enter_context(self.call(method, peer(host, port)))


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("ipv4:10.0.0.5:50123", "10.0.0.5"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:50123", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2:9:9:9:9%5D:1", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:10.0.0.5%5D:50123", "10.0.0.5"),
        ("ipv6:%5Bfe80::1%25eth0%5D:50123", "fe80::/64"),
    ],
)
def test_ports_and_the_lower_half_of_ipv6_do_not_make_another_address(name: str, address: str) -> None:
    assert address_of(name) == address


def test_as_many_may_join_at_once_as_there_can_be_actors_and_then_so_many_a_second() -> None:
    limits = Limited(address_joins_per_second=5.0)
    assert limits.joins(100) == FLEET
    limits.clock.now += 2.0
    assert limits.joins(100) == 10
    assert limits.counts.over_limit["address_joins"] == 174


def test_one_address_leaves_joins_for_others_and_all_together_are_limited_too() -> None:
    limits = Limited()
    assert [limits.joins(100, host) for host in (1, 2, 3)] == [FLEET, FLEET, 0]
    assert limits.counts.over_limit["joins"] == FLEET, "what the third address had of its own"


def test_calls_are_limited_while_they_are_open() -> None:
    limits = Limited(max_calls=4, max_address_calls=3)
    with ExitStack() as held:
        limits.hold(held, host=1, times=3)
        with pytest.raises(OverLimitError, match="address calls"):
            limits.hold(held, host=1)
        limits.hold(held, host=2)
        with pytest.raises(OverLimitError, match="limit of calls"):
            limits.hold(held, host=2)
        assert limits.counts.open_calls["calls"] == 4
    assert limits.counts.open_calls["calls"] == 0
    with ExitStack() as held:
        limits.hold(held, host=1, times=3)


def test_health_checks_have_places_of_their_own() -> None:
    limits = Limited(max_calls=1, max_health_calls=8)
    with ExitStack() as held:
        limits.hold(held, host=1)
        limits.hold(held, host=1, times=2, method=HEALTH)
        with pytest.raises(OverLimitError, match="address health calls"):
            limits.hold(held, host=1, method=HEALTH)
        limits.hold(held, host=2, method=HEALTH)


def test_an_address_with_many_wrong_tokens_is_not_heard_for_a_while_and_others_are() -> None:
    limits = Limited(address_failures_per_second=1.0)
    for _ in range(10):
        limits.failed(peer(1))
    with pytest.raises(OverLimitError, match="address failures"), limits.call(JOIN, peer(1)):
        pass
    with limits.call(JOIN, peer(2)):
        pass
    limits.clock.now += 1.0
    with limits.call(JOIN, peer(1)):
        pass


def test_addresses_beyond_number_are_forgotten_and_not_kept() -> None:
    limits = Limited()
    for host in range(MAX_ADDRESSES + 10):
        limits.failed(peer(host))
    assert len(limits._addresses) == MAX_ADDRESSES
