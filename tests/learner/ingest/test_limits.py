from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from common.config.server_config import LimitsConfig
from common.wire.tokens import UNNAMED
from learner.ingest.caller import Caller, Role, address_of
from learner.ingest.counts import IngestCounts
from learner.ingest.limits import MAX_ACCOUNTS, Limits, OverLimitError
from tests.common.process.test_clocks import Clock

JOIN, HEALTH = "/crossborder.v1.LearnerService/Join", "/grpc.health.v1.Health/Check"
STATUS = "/crossborder.v1.AdminService/Status"
FLEET = 16


def caller(host: int, port: int = 50000, method: str = JOIN, name: str = "") -> Caller:
    return Caller(method, peer(host, port), Role.ACTOR if name else Role.ANYONE, name)


def peer(host: int, port: int = 50000) -> str:
    return f"ipv4:10.0.{host >> 8}.{host & 255}:{port}"


class Limited(Limits):
    """With a clock that is set by hand, and counts to look at."""

    def __init__(self, **config: Any) -> None:
        self.clock, self.counts = Clock(), IngestCounts()
        self.ended = list[Caller]()
        """Calls that were told to make room."""
        super().__init__(LimitsConfig(**config), FLEET, self.counts, self.clock)

    def joins(self, times: int, host: int = 1, name: str = "") -> int:
        """How many of so many joins are let in."""
        refused = 0
        for _ in range(times):
            try:
                self.join(caller(host, name=name))
            except OverLimitError:
                refused += 1
        return times - refused

    def hold(self, stack: ExitStack, host: int, times: int = 1, method: str = JOIN, name: str = "") -> None:
        for port in range(times):
            of = caller(host, port, method, name)
            stack.enter_context(self.call(of, lambda _, of=of: self.ended.append(of)))  # type: ignore[misc]


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


def test_a_named_token_has_limits_of_its_own_whatever_others_at_its_address_do() -> None:
    limits = Limited(max_calls=8, max_address_calls=3)
    with ExitStack() as held:
        limits.hold(held, host=1, times=3)
        limits.hold(held, host=1, times=3, name="alice")
        with pytest.raises(OverLimitError, match="address calls"):
            limits.hold(held, host=2, name="alice")
    assert limits.joins(100) == FLEET
    assert limits.joins(100, name="alice") == FLEET


def test_a_token_without_a_name_is_limited_by_address_as_its_many_holders_cannot_be_told_apart() -> None:
    limits = Limited()
    assert [limits.joins(100, host, UNNAMED) for host in (1, 2)] == [FLEET, FLEET]


@pytest.mark.parametrize(("method", "limit"), [(HEALTH, "health_calls"), (STATUS, "admin_calls")])
def test_a_short_call_always_gets_a_place_from_the_account_that_holds_most(method: str, limit: str) -> None:
    limits = Limited(max_calls=1, **{f"max_{limit}": 4})
    with ExitStack() as held:
        limits.hold(held, host=1)
        limits.hold(held, host=2, method=method)
        limits.hold(held, host=3, times=3, method=method)
        assert limits.ended == []
        limits.hold(held, host=1, times=2, method=method)
        assert [address_of(of.peer) for of in limits.ended] == ["10.0.0.3", "10.0.0.3"]
        assert limits.counts.over_limit[limit] == 2
    assert limits.counts.open_calls[limit] == 0


def test_wrong_tokens_hold_up_no_call_that_has_a_right_one() -> None:
    limits = Limited(address_failures_per_second=1.0)
    for _ in range(10):
        limits.failed(peer(1))
    with pytest.raises(OverLimitError, match="address failures"):
        limits.failed(peer(1))
    limits.failed(peer(2))
    with ExitStack() as held:
        limits.hold(held, host=1)
        limits.hold(held, host=1, method=STATUS)
        limits.hold(held, host=1, method=HEALTH)
    limits.clock.now += 1.0
    limits.failed(peer(1))


def test_addresses_beyond_number_are_forgotten_and_not_kept() -> None:
    limits = Limited()
    for host in range(MAX_ACCOUNTS + 10):
        limits.failed(peer(host))
    assert len(limits._accounts) == MAX_ACCOUNTS
