from __future__ import annotations

from pathlib import Path

import pytest

from common.data import Array
from learner.actor_table import ActorState, map_actor_table
from learner.ingest.registry import Registry, TooManyActorsError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make(table: Array, clock: Clock, max_actors: int = 3) -> Registry:
    return Registry(table, max_actors, lost_seconds=30.0, clock=clock)


@pytest.fixture
def table(tmp_path: Path) -> Array:
    return map_actor_table(tmp_path, create=True)


def test_actors_get_the_smallest_free_id_and_keep_it(table: Array) -> None:
    registry = make(table, Clock())
    assert [registry.join(i, "host", 1) for i in (11, 12, 13)] == [0, 1, 2]
    assert registry.join(12, "host", 1) == 1


def test_the_clock_may_begin_anew_as_it_does_when_the_host_is_started_again(table: Array) -> None:
    registry = make(table, Clock())
    for incarnation in (11, 12):
        registry.join(incarnation, "host", 1)
    registry.set_state(1, ActorState.LEFT)
    clock = Clock()
    clock.now = 5.0
    registry = make(table, clock)
    assert len(registry.recent(60.0)) == 2
    clock.now = 70.0
    assert registry.expire() == [0], "it had the time to come back"
    assert len(registry.recent(60.0)) == 0, "neither is shown for ever"
    assert registry.join(13, "host", 1) == 0


def test_when_every_id_is_taken_the_next_actor_is_refused(table: Array) -> None:
    registry = make(table, Clock(), max_actors=1)
    registry.join(11, "host", 1)
    with pytest.raises(TooManyActorsError, match="all 1 actor ids"):
        registry.join(12, "host", 1)


def test_the_id_of_an_actor_that_left_is_free_again(table: Array) -> None:
    registry = make(table, Clock())
    registry.join(11, "host", 1)
    registry.join(12, "host", 1)
    row = registry.row_of(11)
    assert row is not None
    registry.set_state(row, ActorState.LEFT)
    assert registry.row_of(11) is None
    assert registry.join(13, "host", 1) == 0


def test_an_actor_in_anothers_place_has_its_id_and_a_row_of_its_own(table: Array) -> None:
    registry = make(table, Clock())
    registry.join(11, "host", 1)
    registry.join(22, "host", 2)
    registry.set_state(0, ActorState.LEFT)
    assert registry.join(33, "host", 3) == 0
    assert [registry.row_of(incarnation) for incarnation in (22, 33)] == [1, 2]
    registry.join(33, "host", 3)
    assert registry.row_of(33) == 2


def test_an_actor_silent_for_too_long_is_lost_and_its_id_free(table: Array) -> None:
    clock = Clock()
    registry = make(table, clock)
    registry.join(11, "host", 1)
    clock.now += 29
    assert registry.expire() == []
    clock.now += 2
    assert registry.expire() == [0]
    assert registry.count(ActorState.LOST) == 1
    assert registry.join(12, "host", 1) == 0


def test_an_actor_with_an_open_stream_is_never_lost(table: Array) -> None:
    clock = Clock()
    registry = make(table, clock)
    registry.join(11, "host", 1)
    row = registry.row_of(11)
    assert row is not None
    registry.set_state(row, ActorState.ONLINE)
    clock.now += 1000
    assert registry.expire() == []


def test_a_lost_actor_that_comes_back_keeps_its_statistics(table: Array) -> None:
    clock = Clock()
    registry = make(table, clock)
    registry.join(11, "host", 1)
    row = registry.row_of(11)
    assert row is not None
    registry.stored(row, items=10, behaviour_opt_steps=5, returns=[1.0, 2.0], lengths=[3, 4])
    clock.now += 100
    registry.expire()
    registry.join(12, "host", 1)
    assert registry.join(11, "host", 1) == 1
    assert (registry.total("items"), registry.total("episodes")) == (10, 2)


def test_a_restarted_ingest_process_knows_its_actors(table: Array) -> None:
    clock = Clock()
    before = make(table, clock)
    for incarnation in (11, 12):
        before.join(incarnation, "host", 1)
    row = before.row_of(11)
    assert row is not None
    before.set_state(row, ActorState.ONLINE)
    after = make(table, clock)
    assert after.join(12, "host", 1) == 1
    assert after.join(11, "host", 1) == 0
    assert after.count(ActorState.ONLINE) == 0, "the streams went with the process"


def test_mean_return_and_length_are_over_the_last_hundred_episodes(table: Array) -> None:
    registry = make(table, Clock())
    registry.join(11, "host", 1)
    assert registry.return_mean() == 0.0
    registry.stored(0, 1, 0, [1000.0], [500])
    registry.stored(0, 1, 0, [2.0] * 100, [7] * 100)
    assert (registry.return_mean(), registry.length_mean()) == (2.0, 7.0)


def test_the_row_of_the_actor_gone_for_longest_is_used_again(table: Array) -> None:
    clock = Clock()
    registry = make(table, clock, max_actors=len(table) + 1)
    for incarnation in range(1, len(table) + 1):
        registry.join(incarnation, "host", 1)
    for incarnation in (7, 5):
        clock.now += 1
        row = registry.row_of(incarnation)
        assert row is not None
        registry.set_state(row, ActorState.LEFT)
    gone = registry._rows[7]
    registry.join(10**6, "host", 1)
    assert registry.row_of(10**6) == gone


def test_of_those_that_are_gone_the_recent_ones_are_shown_below_whoever_has_their_id(table: Array) -> None:
    clock = Clock()
    registry = make(table, clock)
    for incarnation in (11, 12):
        registry.join(incarnation, "host", 1)
    registry.set_state(0, ActorState.LEFT)
    registry.join(13, "host", 1)
    assert registry.recent(60.0)["incarnation"].tolist() == [13, 11, 12]
    clock.now += 61
    assert registry.recent(60.0)["incarnation"].tolist() == [13, 12]
