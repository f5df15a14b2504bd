from __future__ import annotations

from contextlib import ExitStack

import pytest

from common.data import ModelVersion
from common.wire.address import peer_address
from common.wire.tokens import UNNAMED
from learner.ingest.gate import Caller, Role
from learner.ingest.limits import (
    ACTIVE_SECONDS,
    ADMIN_CALLS,
    FAILURES_AT_ONCE,
    FAILURES_PER_SECOND,
    HEALTH_CALLS,
    MAX_ACCOUNTS,
    AddressIds,
    CallLimits,
    ModelRepeats,
    ReplayShare,
    Shares,
)
from learner.ingest.refusals import IngestCounts, OverLimitError
from tests.clocks import Clock

JOIN, HEALTH = "/crossborder.v1.LearnerService/Join", "/grpc.health.v1.Health/Check"


STATUS = "/crossborder.v1.AdminService/Status"


FLEET = 16


def caller(host: int, port: int = 50000, method: str = JOIN, name: str = "") -> Caller:
    return Caller(method, peer(host, port), Role.ACTOR if name else Role.ANYONE, name)


def peer(host: int, port: int = 50000) -> str:
    return f"ipv4:10.0.{host >> 8}.{host & 255}:{port}"


class Limited(CallLimits):
    """With a clock that is set by hand, and counts to look at."""

    def __init__(self, fleet: int = FLEET, *, may_share_address: bool = False) -> None:
        self.clock, self.counts = Clock(), IngestCounts()
        self.ended = list[Caller]()
        """Calls that were told to make room."""
        super().__init__(fleet, self.counts, may_share_address=may_share_address, clock=self.clock)

    def joins(self, times: int, host: int = 1, name: str = "") -> int:
        """How many of so many joins are let in."""
        refused = 0
        for _ in range(times):
            try:
                self.count_join(caller(host, name=name))
            except OverLimitError:
                refused += 1
        return times - refused

    def hold(self, stack: ExitStack, host: int, times: int = 1, method: str = JOIN, name: str = "") -> None:
        for port in range(times):
            of = caller(host, port, method, name)
            stack.enter_context(self.call(of, lambda _, of=of: self.ended.append(of)))  # type: ignore[misc]


def test_a_whole_fleet_may_join_at_once_and_then_a_limited_number_a_second() -> None:
    limits = Limited()
    assert limits.joins(100) == FLEET
    limits.clock.now += 0.2
    assert limits.joins(100) == 10
    assert limits.counts.over_limit["address_joins"] == 174


def test_one_address_leaves_joins_for_others_and_all_together_are_limited_too() -> None:
    limits = Limited()
    assert [limits.joins(100, host) for host in (1, 2, 3)] == [FLEET, FLEET, 0]
    assert limits.counts.over_limit["joins"] == FLEET, "what the third address had of its own"


def test_calls_are_limited_while_they_are_open() -> None:
    limits = Limited(fleet=1)
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


def test_with_one_address_for_all_actors_its_calls_and_joins_are_limited_as_those_of_all_addresses() -> None:
    limits = Limited(may_share_address=True)
    assert limits.joins(100) == 2 * FLEET
    with ExitStack() as held:
        limits.hold(held, host=1, times=4 * FLEET)
        with pytest.raises(OverLimitError, match="limit of calls"):
            limits.hold(held, host=1)
    assert limits.counts.over_limit["address_joins"] + limits.counts.over_limit["address_calls"] == 68


def test_a_named_token_has_limits_of_its_own_whatever_others_at_its_address_do() -> None:
    limits, most = Limited(FLEET), 3 * FLEET
    with ExitStack() as held:
        limits.hold(held, host=1, times=FLEET - 1)
        limits.hold(held, host=1, times=most, name="alice")
        with pytest.raises(OverLimitError, match="address calls"):
            limits.hold(held, host=2, name="alice")
    assert limits.joins(100) == FLEET
    assert limits.joins(100, name="alice") == FLEET


def test_a_token_without_a_name_is_limited_by_address_as_its_many_holders_cannot_be_told_apart() -> None:
    limits = Limited()
    assert [limits.joins(100, host, UNNAMED) for host in (1, 2)] == [FLEET, FLEET]


@pytest.mark.parametrize(("method", "limit"), [(HEALTH, "health_calls"), (STATUS, "admin_calls")])
def test_a_short_call_always_gets_a_place_from_the_account_that_holds_most(method: str, limit: str) -> None:
    limits, places = Limited(fleet=1), HEALTH_CALLS if method == HEALTH else ADMIN_CALLS
    with ExitStack() as held:
        limits.hold(held, host=1)
        limits.hold(held, host=2, method=method)
        limits.hold(held, host=3, times=places - 1, method=method)
        assert limits.ended == []
        limits.hold(held, host=1, times=2, method=method)
        assert [peer_address(of.peer) for of in limits.ended] == ["10.0.0.3", "10.0.0.3"]
        assert limits.counts.over_limit[limit] == 2
    assert limits.counts.open_calls[limit] == 0


def test_wrong_tokens_hold_up_no_call_that_has_a_right_one() -> None:
    limits = Limited()
    for _ in range(int(FAILURES_AT_ONCE)):
        limits.count_failure(peer(1))
    with pytest.raises(OverLimitError, match="address failures"):
        limits.count_failure(peer(1))
    limits.count_failure(peer(2))
    with ExitStack() as held:
        limits.hold(held, host=1)
        limits.hold(held, host=1, method=STATUS)
        limits.hold(held, host=1, method=HEALTH)
    limits.clock.now += 2 / FAILURES_PER_SECOND
    limits.count_failure(peer(1))


def test_only_a_limited_number_of_accounts_is_remembered() -> None:
    limits = Limited()
    for host in range(MAX_ACCOUNTS + 10):
        limits.count_failure(peer(host))
    assert len(limits._failures._buckets) == MAX_ACCOUNTS


def test_failures_of_many_addresses_give_nobody_more_calls_or_joins() -> None:
    limits = Limited(fleet=1)
    with ExitStack() as held:
        limits.hold(held, host=1, times=3)
        assert limits.joins(100) == 1
        for host in range(MAX_ACCOUNTS):
            limits.count_failure(peer(host))
        with pytest.raises(OverLimitError, match="address calls"):
            limits.hold(held, host=1)
        assert limits.joins(100) == 0
    assert not limits._open, "accounts without an open call are not remembered"


GREEDY = 99


CAPACITY = 10_000


class Shared(ReplayShare):
    """With a clock that is set by hand."""

    def __init__(self, multiple: float | None = 4.0) -> None:
        self.clock = Clock()
        super().__init__(CAPACITY, multiple, self.clock)

    def run(self, seconds: float, *, honest: int, honest_rows: int, greedy_rows: int) -> tuple[int, float]:
        """Each tenth of a second every honest actor stores; the greedy one whenever it may.

        Returns:
            The items that the greedy actor has stored, and the longest pause of an honest one.
        """
        stored, longest, end = 0, 0.0, self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += 0.1
            for actor in range(honest):
                self.note_batch(actor, honest_rows)
                longest = max(longest, self.seconds_to_wait(actor))
            if not self.seconds_to_wait(GREEDY):
                self.note_batch(GREEDY, greedy_rows)
                stored += greedy_rows
        return stored, longest


def test_an_actor_alone_may_replace_the_whole_replay_as_fast_as_it_can() -> None:
    shared = Shared()
    stored, _ = shared.run(10.0, honest=0, honest_rows=0, greedy_rows=CAPACITY)
    assert stored >= 99 * CAPACITY


def test_among_others_a_greedy_actor_fills_four_times_their_mean_and_they_do_not_notice() -> None:
    shared = Shared()
    first, longest = shared.run(30.0, honest=4, honest_rows=10, greedy_rows=CAPACITY // 16)
    second, _ = shared.run(60.0, honest=4, honest_rows=10, greedy_rows=CAPACITY // 16)
    assert longest == 0
    assert CAPACITY / 2 < first < 2 * CAPACITY, "at once the share that it may have, half, then slowly"
    assert second <= 60 * 10 * 4 * 10, "no more than the others together"


def test_beside_slow_actors_a_greedy_one_still_replaces_the_replay_once_a_minute() -> None:
    shared = Shared()
    shared.run(30.0, honest=4, honest_rows=1, greedy_rows=CAPACITY // 16)
    stored, _ = shared.run(60.0, honest=4, honest_rows=1, greedy_rows=CAPACITY // 16)
    assert stored == pytest.approx(CAPACITY, rel=0.2)


def test_actors_of_one_speed_never_wait_however_fast_they_are() -> None:
    shared = Shared()
    stored, longest = shared.run(30.0, honest=1, honest_rows=500, greedy_rows=500)
    assert stored == pytest.approx(30 * 10 * 500, rel=0.01)
    assert longest == 0


def test_an_actor_three_times_as_fast_as_the_others_never_waits() -> None:
    shared = Shared()
    stored, _ = shared.run(60.0, honest=7, honest_rows=100, greedy_rows=300)
    assert stored == pytest.approx(60 * 10 * 300, rel=0.01)


def test_an_actor_goes_on_freely_when_the_others_have_gone() -> None:
    shared = Shared()
    shared.run(10.0, honest=4, honest_rows=10, greedy_rows=CAPACITY // 16)
    shared.clock.now += ACTIVE_SECONDS + 60.0
    stored, _ = shared.run(10.0, honest=0, honest_rows=0, greedy_rows=CAPACITY)
    assert stored >= 99 * CAPACITY


def test_an_actor_goes_on_freely_as_soon_as_the_streams_of_the_others_have_ended() -> None:
    shared = Shared()
    shared.run(1.0, honest=1, honest_rows=10, greedy_rows=10)
    shared.note_end(0)
    stored, _ = shared.run(1.0, honest=0, honest_rows=0, greedy_rows=CAPACITY)
    assert stored >= 9 * CAPACITY


def share_of_many(name: str) -> int:
    """The rows that twenty actors with tokens of this name store beside four honest ones in two minutes."""
    clock = Clock()
    shares, stored = Shares(CAPACITY, 4.0, clock), 0
    for _ in range(1200):
        clock.now += 0.1
        for honest in range(4):
            shares.note_batch(honest, f"honest{honest}", 10)
            assert not shares.seconds_to_wait(honest, f"honest{honest}")
        for row in range(100, 120):
            if not shares.seconds_to_wait(row, name):
                shares.note_batch(row, name, 100)
                stored += 100
    return stored


def test_the_actors_of_one_name_have_one_share_and_those_without_a_name_one_each() -> None:
    assert share_of_many("mallory") < 1200 * 4 * 10 + CAPACITY, (
        "no more than the others together, after the first share"
    )
    assert share_of_many(UNNAMED) == 1200 * 20 * 100, "twenty of one speed"


def test_the_many_actors_of_a_name_without_others_never_wait() -> None:
    clock = Clock()
    shares = Shares(CAPACITY, 4.0, clock)
    for _ in range(100):
        clock.now += 0.1
        for row in range(100):
            shares.note_batch(row, "fleet", 100)
            assert not shares.seconds_to_wait(row, "fleet")


def test_without_a_multiple_nobody_waits() -> None:
    stored, _ = Shared(multiple=None).run(10.0, honest=4, honest_rows=10, greedy_rows=CAPACITY)
    assert stored >= 99 * CAPACITY


def test_a_connection_that_asks_for_one_model_over_and_over_is_answered_once_a_second() -> None:
    clock = Clock()
    repeats, first, second = ModelRepeats(clock), ModelVersion(1, 0), ModelVersion(1, 5)
    delays = [repeats.count_request(("one", False), first) for _ in range(9)]
    assert delays == [0, 0, 0, 0, 0, 0, 1, 2, 3]
    assert repeats.count_request(("other", False), first) == 0
    assert repeats.count_request(("one", True), first) == 0, "candidates are counted by themselves"
    assert repeats.count_request(("one", False), second) == 0, "a newer model is there at once"
    clock.now += 100.0
    assert repeats.count_request(("one", False), second) == 0


def test_an_address_holds_a_limited_number_of_ids_and_leaves_room_for_others() -> None:
    present = set[int]()
    ids = AddressIds(2, present.__contains__)

    def join(address: str, incarnation: int) -> None:
        assert ids.has_room(address, incarnation)
        present.add(incarnation)
        ids.note_join(address, incarnation)

    join("a", 1)
    join("a", 2)
    join("a", 2)
    assert not ids.has_room("a", 3)
    assert ids.has_room("a", 3, former=2), "an incarnation in the place of another takes no further id"
    join("b", 3)
    present.remove(1)
    join("a", 4)


def test_incarnations_that_are_gone_are_not_remembered_for_ever() -> None:
    ids = AddressIds(2, lambda _: False)
    for incarnation in range(1000):
        ids.note_join("a", incarnation)
    assert len(ids._account) <= 64


def test_an_incarnation_counts_at_the_address_from_which_it_joined_last() -> None:
    ids = AddressIds(1, lambda _: True)
    ids.note_join("a", 1)
    assert not ids.has_room("a", 2)
    ids.note_join("b", 1)
    assert ids.has_room("a", 2)
    assert not ids.has_room("b", 2)
