from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from common.lanes.pace import Pace


class Clock(threading.Event):
    """Time that passes only in waits and when a test says so; waits end late by ``oversleeps``."""

    now = 100.0
    oversleeps = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now += (timeout or 0) + self.oversleeps
        return self.is_set()

    def __call__(self) -> float:
        return self.now


def begun(clock: Clock, step_seconds: Sequence[float], rate_hz: float = 10.0) -> list[tuple[float, float, int]]:
    """For steps that take so long, the time at which each begins, its lateness, and the ticks missed before it."""
    noted: list[tuple[float, float, int]] = []
    pace = Pace(
        rate_hz, clock, lambda lateness, missed: noted.append((round(clock() - 100, 6), lateness, missed)), clock
    )
    for seconds in step_seconds:
        assert pace.wait()
        clock.now += seconds
    return noted


def test_each_step_begins_at_its_tick_however_long_steps_take() -> None:
    noted = begun(Clock(), [0.01, 0.09, 0.03, 0.0])
    assert [at for at, _, _ in noted] == [0.0, 0.1, 0.2, 0.3]
    assert all(lateness < 1e-9 for _, lateness, _ in noted)


def test_late_waits_do_not_move_later_ticks() -> None:
    clock = Clock()
    clock.oversleeps = 0.004
    assert [at for at, _, _ in begun(clock, [0.01] * 4)] == [0.0, 0.104, 0.204, 0.304]


def test_a_step_whose_tick_has_passed_begins_at_once_and_missed_ticks_are_left_out() -> None:
    noted = begun(Clock(), [0.13, 0.01, 0.35, 0.01, 0.01])
    assert [(at, missed) for at, _, missed in noted] == [(0.0, 0), (0.13, 0), (0.2, 0), (0.55, 2), (0.6, 0)]
    assert [lateness for _, lateness, _ in noted] == pytest.approx([0, 0.03, 0, 0.05, 0])


def test_an_episode_begins_with_a_tick_of_its_own() -> None:
    clock, late = Clock(), []
    pace = Pace(10.0, clock, lambda lateness, missed: late.append((lateness, missed)), clock)
    pace.wait()
    clock.now += 7.77  # A reset.
    pace.begin()
    assert pace.remaining() == float("inf")
    pace.wait()
    assert late == [(0.0, 0), (0.0, 0)]
    assert pace.remaining() == pytest.approx(0.1)


def test_a_stop_ends_the_wait_and_the_step_is_not_taken() -> None:
    clock, noted = Clock(), []
    pace = Pace(10.0, clock, lambda lateness, missed: noted.append((lateness, missed)), clock)
    pace.wait()
    clock.set()
    assert not pace.wait()
    assert len(noted) == 1


def test_late_steps_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    begun(Clock(), [0.15] * 500)  # 75 s
    first, second = caplog.messages
    assert first.startswith("env.rate_hz: 1 steps late and 0 ticks missed so far. This step began 50.0 ms after its")
    assert "took 150.0 ms, and 100.0 ms lie between two ticks" in first
    assert second.startswith("env.rate_hz: 2")


def test_a_late_wait_is_told_with_a_step_that_had_time_enough(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    clock.oversleeps = 0.004
    begun(clock, [0.01] * 2)
    (told,) = caplog.messages
    assert (
        "began 4.0 ms after its tick. The step before it, its recording and the choice of this action took 10.0 ms"
        in told
    )
