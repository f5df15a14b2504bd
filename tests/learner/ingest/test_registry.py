from __future__ import annotations

from pathlib import Path

import pytest

from common.data import Array
from learner.ingest.registry import (
    GONE_SECONDS,
    MAX_RATE,
    MAX_TOTAL,
    UNSEEN_SECONDS,
    Registry,
    TooManyActorsError,
)
from learner.shared.actor_table import REPORTED, ActorState, map_actor_table
from tests.clocks import Clock


def enter(registry: Registry, incarnation: int) -> None:
    """Join, open a stream and lose it."""
    registry.join(incarnation, "host", 1)
    row = registry.row_of(incarnation)
    assert row is not None
    registry.set_state(row, ActorState.AWAY)


def make(table: Array, clock: Clock, max_actors: int = 3) -> Registry:
    return Registry(table, max_actors, lost_seconds=30.0, join_seconds=10.0, clock=clock)


@pytest.fixture
def table(tmp_path: Path) -> Array:
    return map_actor_table(tmp_path, create=True)


def test_actors_get_the_smallest_free_id_and_keep_it(table: Array) -> None:
    registry = make(table, Clock())
    assert [registry.join(i, "host", 1) for i in (11, 12, 13)] == [0, 1, 2]
    assert registry.join(12, "host", 1) == 1


def test_an_actor_that_evaluates_gets_the_largest_free_id_and_leaves_the_others_to_those_that_explore(
    table: Array,
) -> None:
    registry = make(table, Clock())
    assert [registry.join(i, "host", 1, evaluates=i == 11) for i in (11, 12, 13)] == [2, 0, 1]
    with pytest.raises(TooManyActorsError):
        registry.join(14, "host", 1, evaluates=True)


def test_the_clock_may_begin_anew_as_it_does_when_the_host_is_started_again(table: Array) -> None:
    registry = make(table, Clock())
    for incarnation in (11, 12):
        enter(registry, incarnation)
    registry.set_state(1, ActorState.LEFT)
    clock = Clock()
    clock.now = 5.0
    registry = make(table, clock)
    assert len(registry.recent_rows(60.0)) == 2
    clock.now = 70.0
    assert registry.expire() == [0], "it had the time to come back"
    assert len(registry.recent_rows(60.0)) == 0, "neither is shown for ever"
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


def test_a_robot_that_names_its_id_has_it_again_at_once_after_its_process_was_killed(table: Array) -> None:
    registry = make(table, Clock())
    assert registry.join(11, "host", 1, wanted=2) == 2
    assert registry.join(22, "host", 2) == 0, "others take the smallest free id"
    row = registry.row_of(11)
    assert row is not None
    registry.set_state(row, ActorState.AWAY)
    assert registry.join(33, "host", 3, wanted=2) == 2
    assert registry.row_of(11) is None, "the process before it has no place any more"
    assert registry.count(ActorState.LOST) == 1


def test_an_id_is_not_taken_from_an_actor_of_another_name_that_is_away(table: Array) -> None:
    registry = make(table, Clock())
    registry.join(11, "host", 1, name="alice", wanted=2)
    row = registry.row_of(11)
    assert row is not None
    registry.set_state(row, ActorState.AWAY)
    with pytest.raises(TooManyActorsError, match="which is away"):
        registry.join(22, "host", 2, name="mallory", wanted=2)
    assert registry.join(33, "host", 3, name="alice", wanted=2) == 2
    back = registry.row_of(33)
    assert back is not None
    registry.set_state(back, ActorState.LOST)
    assert registry.join(22, "host", 2, name="mallory", wanted=2) == 2, "a lost actor has no id"


def test_cursors_are_given_up_by_those_that_were_replaced_and_then_by_the_name_that_has_most(table: Array) -> None:
    registry = make(table, Clock(), max_actors=10)
    for incarnation, name in ((1, "alice"), (2, "mallory"), (3, "bob"), (4, "mallory"), (5, "mallory")):
        registry.join(incarnation, "host", 1, name=name)
    registry.join(6, "host", 1, name="mallory", former=5)
    assert registry.least_needed([1, 2, 3, 4, 5]) == 5
    assert registry.least_needed([1, 2, 3, 4]) == 2


def test_an_id_that_an_actor_has_is_not_given_to_another_who_names_it(table: Array) -> None:
    registry = make(table, Clock())
    registry.join(11, "host", 1, wanted=1)
    row = registry.row_of(11)
    assert row is not None
    registry.set_state(row, ActorState.ONLINE)
    with pytest.raises(TooManyActorsError, match=r"actor id 1: expected that nobody .* on host \(pid 1\), .* online"):
        registry.join(22, "host", 2, wanted=1)
    assert registry.join(11, "host", 1, wanted=1) == 1, "but its own process may join again"


def test_an_actor_silent_for_too_long_is_lost_and_its_id_free(table: Array) -> None:
    clock = Clock()
    registry = make(table, clock)
    enter(registry, 11)
    clock.now += 29
    assert registry.expire() == []
    clock.now += 2
    assert registry.expire() == [0]
    assert registry.count(ActorState.LOST) == 1
    assert registry.join(12, "host", 1) == 0


def test_an_actor_that_opens_no_stream_gives_its_id_back_within_seconds_and_leaves_no_row(table: Array) -> None:
    clock = Clock()
    registry = make(table, clock, max_actors=1)
    registry.join(11, "host", 1)
    clock.now += 9
    assert registry.forget_idle() == []
    with pytest.raises(TooManyActorsError):
        registry.join(12, "host", 1)
    clock.now += 2
    assert registry.forget_idle() == [0]
    assert registry.row_of(11) is None
    assert registry.count(ActorState.LOST) == 0, "it never worked, so nobody needs to look for it"
    assert registry.join(12, "host", 1) == 0


def test_an_actor_that_is_back_after_it_was_lost_keeps_its_figures_although_it_opens_no_stream(table: Array) -> None:
    clock = Clock()
    registry = make(table, clock)
    enter(registry, 11)
    registry.note_batch(0, steps=10, behaviour_opt_steps=5, returns=[], lengths=[])
    clock.now += 100
    registry.expire()
    registry.join(11, "host", 1)
    clock.now += 11
    assert registry.forget_idle() == []
    assert registry.total("items") == 10


def test_an_actor_that_builds_is_not_online_until_it_says_so(table: Array) -> None:
    registry = make(table, Clock())
    registry.join(11, "host", 1)
    registry.set_state(0, ActorState.ONLINE)
    figures = (0,) * len(REPORTED)
    states = []
    for building in (True, True, False):
        registry.note_report(0, figures, building=building)
        states.append(registry.state(0))
    assert states == [ActorState.BUILDING, ActorState.BUILDING, ActorState.ONLINE]


def test_a_late_message_of_an_old_stream_does_not_bring_an_actor_online(table: Array) -> None:
    registry = make(table, Clock())
    enter(registry, 11)
    for building in (False, True):
        registry.note_report(0, (0,) * len(REPORTED), building=building)
        assert registry.state(0) == ActorState.AWAY


def test_an_incarnation_in_the_place_of_another_has_its_id_and_its_figures_and_the_other_is_unknown(
    table: Array,
) -> None:
    registry = make(table, Clock())
    for incarnation in (11, 12):
        enter(registry, incarnation)
    registry.note_batch(1, steps=10, behaviour_opt_steps=5, returns=[], lengths=[])
    assert [registry.join(22, "host", 1, former=12) for _ in range(2)] == [1, 1], "also when it asks again"
    assert (registry.row_of(22), registry.row_of(12), registry.total("items")) == (1, None, 10)
    assert make(table, Clock()).row_of(22) == 1, "the next ingest process knows that too"
    assert registry.join(33, "host", 1, former=99) == 2, "nobody knows 99, so 33 is a new actor"


def test_an_actor_of_a_former_ingest_process_is_known_as_such_also_under_its_new_incarnation(table: Array) -> None:
    enter(make(table, Clock()), 11)
    registry = make(table, Clock())
    registry.join(22, "host", 1, former=11)
    registry.join(33, "host", 1)
    assert [registry.was_here_before(incarnation) for incarnation in (22, 33)] == [True, False]
    assert not registry.was_here_before(11), "nobody is remembered who was replaced"


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
    enter(registry, 11)
    row = registry.row_of(11)
    assert row is not None
    registry.note_batch(row, steps=10, behaviour_opt_steps=5, returns=[1.0, 2.0], lengths=[3, 4])
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
    registry.note_batch(0, 1, 0, [1000.0], [500])
    registry.note_batch(0, 1, 0, [2.0] * 100, [7] * 100)
    assert (registry.return_mean(), registry.length_mean()) == (2.0, 7.0)


def test_the_share_of_successes_is_over_the_last_hundred_episodes_that_say_so(table: Array) -> None:
    registry = make(table, Clock())
    assert registry.success_mean() == 0.0
    registry.note_successes([False] * 50)
    registry.note_successes([True] * 75)
    assert registry.success_mean() == 0.75


def test_the_row_of_the_actor_gone_for_longest_is_used_again(table: Array) -> None:
    table = table[:20]
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


def test_actors_gone_recently_are_listed_below_the_actor_that_has_their_id(table: Array) -> None:
    clock = Clock()
    registry = make(table, clock)
    for incarnation in (11, 12):
        registry.join(incarnation, "host", 1)
    registry.set_state(0, ActorState.LEFT)
    registry.join(13, "host", 1)
    assert registry.recent_rows(60.0)["incarnation"].tolist() == [13, 11, 12]
    clock.now += 61
    assert registry.recent_rows(60.0)["incarnation"].tolist() == [13, 12]


def test_an_actor_is_gone_when_it_said_goodbye_or_was_lost_for_a_day(table: Array) -> None:
    clock = Clock()
    registry = make(table, clock)
    for incarnation in (11, 12):
        registry.join(incarnation, "host", 1)
    registry.set_state(0, ActorState.LEFT)
    registry.set_state(1, ActorState.AWAY)
    assert [registry.is_gone(incarnation) for incarnation in (11, 12, 13)] == [True, False, False]
    assert [registry.is_present(incarnation) for incarnation in (11, 12, 13)] == [False, True, False]
    clock.now += GONE_SECONDS
    registry.expire()
    assert not registry.is_gone(12)
    clock.now += 1.0
    assert registry.is_gone(12)


def figures(**given: float) -> tuple[float, ...]:
    return tuple(given.get(name, 0.0) for name in REPORTED)


def test_reported_figures_count_only_as_far_as_they_can_be_true(table: Array, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    registry = make(table, clock)
    registry.join(11, "host", 1)
    clock.now += 9.0
    registry.note_report(0, figures(env_steps=5_000, seconds=9.0, spool_bytes=64 << 20), building=False)
    assert (registry.total("env_steps"), table["spool_bytes"][0]) == (5_000, 64 << 20)
    registry.note_report(0, figures(env_steps=2**53, seconds=9.0), building=False)
    assert registry.total("env_steps") == 10 * MAX_RATE
    assert "actor 0 reports too high figures: {'env_steps': 9007199254740992" in caplog.text
    registry.note_report(0, figures(env_steps=6_000, seconds=10.0), building=False)
    assert registry.total("env_steps") == 6_000, "the next honest report counts as it is"


def test_an_actor_that_was_here_before_ingest_was_started_again_goes_on_from_its_figures(table: Array) -> None:
    clock = Clock()
    make(table, clock).join(11, "host", 1)
    table["env_steps"][0] = 10**13
    clock.now = 5.0
    registry = make(table, clock)
    registry.note_report(0, figures(env_steps=10**13 + 10**9), building=False)
    assert registry.total("env_steps") == 10**13 + 10**9
    registry.note_report(0, figures(env_steps=2**53), building=False)
    assert registry.total("env_steps") == pytest.approx(10**13 + UNSEEN_SECONDS * MAX_RATE)


def test_the_steps_of_an_actor_count_on_after_a_restart_of_ingest_and_from_0_in_its_successor(table: Array) -> None:
    clock = Clock()
    first = make(table, clock)
    first.join(11, "host", 1)
    assert [first.note_batch(0, steps, 0, [], []) for steps in (10, 5)] == [10, 15]
    second = make(table, clock)
    assert second.note_batch(0, 5, 0, [], []) == 20
    second.join(12, "host", 2)
    assert second.note_batch(1, 5, 0, [], []) == 5


def test_no_sum_falls_when_the_row_of_an_actor_passes_on_to_another(table: Array) -> None:
    clock = Clock()
    small = table[:4].copy()
    registry = make(small, clock)
    for number, incarnation in enumerate((11, 12, 13, 14, 15), start=1):
        clock.now += 1.0
        enter(registry, incarnation)
        row = registry.row_of(incarnation)
        assert row is not None
        registry.note_report(row, figures(env_steps=number, env_seconds=0.5), building=False)
        registry.note_batch(row, steps=10, behaviour_opt_steps=5, returns=[1.0], lengths=[3])
        registry.set_state(row, ActorState.LEFT)
        registry = make(small, clock)
        sums = [registry.total(name) for name in ("env_steps", "env_seconds", "items", "episodes")]
        assert sums == [sum(range(number + 1)), 0.5 * number, 10 * number, number]
    assert sorted(small["incarnation"].tolist()) == [0, 13, 14, 15]


def test_sums_do_not_overflow_however_many_actors_report_the_most_there_can_be(table: Array) -> None:
    table["state"], table["env_steps"] = ActorState.LEFT, int(MAX_TOTAL)
    assert make(table, Clock()).total("env_steps") == len(table) * int(MAX_TOTAL)
