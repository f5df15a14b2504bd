from __future__ import annotations

import pytest

from common.data import ModelVersion
from learner.ingest.quota import ACTIVE_SECONDS, AddressIds, ModelRepeats, ReplayShare, TooManyOfAddressError
from tests.common.process.test_clocks import Clock

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
                self.stored(actor, honest_rows)
                longest = max(longest, self.pause(actor))
            if not self.pause(GREEDY):
                self.stored(GREEDY, greedy_rows)
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


def test_without_a_multiple_nobody_waits() -> None:
    stored, _ = Shared(multiple=None).run(10.0, honest=4, honest_rows=10, greedy_rows=CAPACITY)
    assert stored >= 99 * CAPACITY


def test_a_connection_that_asks_for_one_model_over_and_over_is_answered_once_a_second() -> None:
    clock = Clock()
    repeats, first, second = ModelRepeats(clock), ModelVersion(1, 0), ModelVersion(1, 5)
    delays = [repeats.delay("one", first) for _ in range(9)]
    assert delays == [0, 0, 0, 0, 0, 0, 1, 2, 3]
    assert repeats.delay("other", first) == 0
    assert repeats.delay("one", second) == 0, "a newer model is there at once"
    clock.now += 100.0
    assert repeats.delay("one", second) == 0


def test_an_address_holds_so_many_ids_and_others_have_room_of_their_own() -> None:
    present = set[int]()
    ids = AddressIds(2, present.__contains__)

    def join(address: str, incarnation: int) -> None:
        ids.require_room(address, incarnation)
        present.add(incarnation)
        ids.joined(address, incarnation)

    join("a", 1)
    join("a", 2)
    join("a", 2)
    with pytest.raises(TooManyOfAddressError, match="the actors at a hold 2 actor ids"):
        join("a", 3)
    ids.require_room("a", 3, former=2)  # An incarnation in the place of another takes no further id.
    join("b", 3)
    present.remove(1)
    join("a", 4)


def test_incarnations_that_are_gone_are_not_remembered_for_ever() -> None:
    ids = AddressIds(2, lambda _: False)
    for incarnation in range(1000):
        ids.joined("a", incarnation)
    assert len(ids._address) <= 64
