from __future__ import annotations

import random
import signal
import threading
from contextlib import suppress

import pytest

from common.process.clocks import Backoff, BrokenOffError, Bucket, Buckets, Deadline, Stillness, breaking_off, is_due
from tests.clocks import Clock


def test_a_deadline_counts_down_and_has_passed_at_its_point_in_time() -> None:
    clock = Clock()
    deadline = Deadline(5.0, clock)
    assert (deadline.remaining(), deadline.passed()) == (5.0, False)
    clock.now += 3.0
    assert (deadline.remaining(), deadline.passed()) == (2.0, False)
    clock.now += 2.0
    assert (deadline.remaining(), deadline.passed()) == (0.0, True)


def test_nothing_remains_after_a_deadline() -> None:
    clock = Clock()
    deadline = Deadline(5.0, clock)
    clock.now += 50.0
    assert deadline.remaining() == 0.0
    assert deadline.passed()


def test_a_deadline_without_time_has_passed_at_once() -> None:
    assert Deadline(0.0, Clock()).passed()


def test_what_hangs_is_broken_off_also_if_it_hangs_again_while_it_cleans_up_and_the_alarm_before_still_counts() -> None:
    cleanings, never = list[str](), threading.Event()
    former = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0

    def hang_twice() -> None:
        try:
            never.wait()
        finally:
            cleanings.append("begins")
            never.wait()

    with pytest.raises(BrokenOffError, match=r"expected an answer within 0.5 s, found none"), breaking_off(0.5):
        hang_twice()
    assert cleanings == ["begins"]
    assert former == (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0)


def test_what_tries_again_after_its_own_errors_is_broken_off_too() -> None:
    tries = list[int]()

    def try_again() -> None:
        while True:
            with suppress(Exception):
                tries.append(1)
                threading.Event().wait()

    with pytest.raises(BrokenOffError), breaking_off(0.5):
        try_again()
    assert len(tries) == 1


def test_what_goes_on_part_by_part_is_not_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = list[float]()
    monkeypatch.setattr("common.process.clocks.signal.setitimer", lambda _, seconds, __: timers.append(seconds))
    with breaking_off(7.0) as go_on:
        go_on()
        go_on()
    assert timers[:3] == [7.0, 7.0, 7.0]


def test_in_another_thread_nothing_is_broken_off() -> None:
    handlers = list[object]()

    def work() -> None:
        with breaking_off(7.0) as go_on:
            go_on()
            handlers.append(signal.getsignal(signal.SIGALRM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert handlers == [signal.getsignal(signal.SIGALRM)]


def test_every_third_step_is_due() -> None:
    assert [step for step in range(1, 10) if is_due(step, 3)] == [3, 6, 9]


@pytest.mark.parametrize("interval", [0, None])
def test_with_an_interval_of_0_or_none_no_step_is_due(interval: int | None) -> None:
    assert not any(is_due(step, interval) for step in range(10))


def test_a_bucket_gives_its_size_at_once_and_then_its_rate() -> None:
    clock = Clock()
    bucket = Bucket(rate=2.0, size=3.0, clock=clock)
    assert [bucket.take() for _ in range(5)] == [True, True, True, False, False]
    clock.now += 1.0
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    clock.now += 100.0
    assert sum(bucket.take() for _ in range(10)) == 3, "never more than its size"


def test_each_name_has_a_bucket_until_more_than_so_many_others_have_taken_since() -> None:
    buckets = Buckets(rate=1.0, size=1.0, most=2, clock=Clock())
    assert [buckets.take(name) for name in "aabbab"] == [True, False, True, False, False, False]
    assert buckets.take("c"), "a is forgotten: it took longest ago"
    assert [buckets.take(name) for name in "ba"] == [False, True]


def test_asking_whether_a_bucket_is_empty_takes_no_token() -> None:
    bucket = Bucket(rate=1.0, size=1.0, clock=Clock())
    assert not bucket.is_empty()
    assert bucket.take()
    assert bucket.is_empty()


def test_stillness_counts_from_the_last_change() -> None:
    clock, counts = Clock(), [0]
    stillness = Stillness(lambda: counts[0], clock)
    found = []
    for change in (0, 0, 0, 1, 0, 0):
        clock.now += 1.0
        counts[0] += change
        found.append(stillness.seconds())
    assert found == [1.0, 2.0, 3.0, 0.0, 1.0, 2.0]
    stillness.begin()
    assert stillness.seconds() == 0.0


def test_a_time_in_which_this_process_was_stopped_is_no_stillness() -> None:
    clock = Clock()
    stillness = Stillness(lambda: 0, clock)
    clock.now += 1.0
    assert stillness.seconds() == 1.0
    clock.now += 3600.0
    assert stillness.seconds() == 0.0


def test_delays_lie_anywhere_below_a_ceiling_that_doubles_up_to_the_highest() -> None:
    backoffs = [Backoff(first=0.1, highest=5.0, rng=random.Random(seed)) for seed in range(200)]
    for ceiling in [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]:
        delays = [backoff.next_delay() for backoff in backoffs]
        assert 0 <= min(delays) < 0.05 * ceiling
        assert 0.95 * ceiling < max(delays) <= ceiling


def test_after_a_reset_delays_are_short_again() -> None:
    backoff = Backoff(first=0.1, highest=5.0, rng=random.Random(0))
    assert max(backoff.next_delay() for _ in range(20)) > 0.1
    backoff.reset()
    assert backoff.next_delay() <= 0.1


def test_backing_off_for_days_never_overflows() -> None:
    backoff = Backoff(first=0.1, highest=5.0)
    assert all(backoff.next_delay() <= 5.0 for _ in range(5000))
