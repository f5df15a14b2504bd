from __future__ import annotations

import numpy as np
import pytest

from actor.stat import ActorCounters, ActorFigures
from common.data import MAX_ENV_ERROR, MAX_EPISODES
from common.lanes.lanes import Round
from learner.ingest.registry import MAX_RETURN
from learner.shared.actor_table import REPORTED
from tests.clocks import Clock


def test_the_figures_that_an_actor_reports_are_those_that_the_learner_keeps() -> None:
    assert tuple(ActorCounters().figures()) == tuple(vars(ActorFigures())) == REPORTED


def ended(*episodes: tuple[float, int, bool | None]) -> Round:
    """A round in which episodes end with these returns, lengths and successes."""
    returns, lengths, successes = map(list, zip(*episodes, strict=True))
    nothing = np.zeros(len(episodes))
    flags = np.ones(len(episodes), bool)
    lanes = np.arange(len(episodes))
    return Round(nothing, flags, ~flags, nothing, lanes, returns=returns, lengths=lengths, success=successes)


def test_a_return_that_is_not_finite_or_too_large_for_a_report_is_not_reported() -> None:
    """The learner refuses a report whose returns have a larger sum than ``MAX_RETURN``, and with it the actor."""
    counters, largest = ActorCounters(), MAX_RETURN / MAX_EPISODES
    counters.add_episodes(ended((float("inf"), 2, None), (2.0, 1, None), (-2 * largest, 1, None), (-largest, 3, None)))
    assert counters.take_episodes() == ([2.0, -largest], [1, 3], [])


def test_episodes_are_taken_once() -> None:
    counters = ActorCounters()
    assert counters.take_episodes() == ([], [], [])
    counters.add_episodes(ended((3.5, 2, None), (-4.0, 1, None)))
    assert counters.take_episodes() == ([3.5, -4.0], [2, 1], [])
    assert counters.take_episodes() == ([], [], [])


def test_episodes_that_were_taken_do_not_change_afterwards() -> None:
    counters = ActorCounters()
    counters.add_episodes(ended((1.0, 1, None)))
    taken = counters.take_episodes()
    counters.add_episodes(ended((2.0, 1, None)))
    assert taken == ([1.0], [1], [])


def test_the_record_has_means_of_the_last_hundred_episodes_and_of_the_successes_that_are_known() -> None:
    counters = ActorCounters()
    assert counters.episode_record() == {}
    counters.add_episodes(ended((1000.0, 1, True)))
    for _ in range(100):
        counters.add_episodes(ended((3.0, 2, None)))
    assert counters.episode_record() == {"train_return": 3.0, "train_length": 2.0, "train_success": 1.0}
    counters.add_episodes(ended((3.0, 1, False)))
    assert counters.take_episodes()[2] == [True, False]
    resumed = ActorCounters()
    resumed.restore(counters.state())
    assert resumed.episode_record() == counters.episode_record()
    assert resumed.episode_record()["train_success"] == 0.5


def test_time_runs_from_the_first_step() -> None:
    clock = Clock()
    counters = ActorCounters(clock)
    clock.now = 60.0
    assert counters.seconds == 0.0
    counters.tick()
    clock.now = 62.5
    counters.tick()
    assert counters.seconds == pytest.approx(2.5)


def test_of_more_episodes_than_a_report_may_hold_the_newest_are_kept() -> None:
    counters = ActorCounters()
    for episode in range(MAX_EPISODES + 5):
        counters.add_episodes(ended((float(episode), 1, None)))
    returns, lengths, _ = counters.take_episodes()
    assert len(returns) == len(lengths) == MAX_EPISODES
    assert (returns[0], returns[-1]) == (5.0, MAX_EPISODES + 4.0)
    assert counters.take_episodes() == ([], [], [])


def test_the_end_of_the_newest_environment_error_is_reported_once_and_always_as_utf_8() -> None:
    counters = ActorCounters()
    counters.note_env_error("an older one")
    counters.note_env_error("x" * MAX_ENV_ERROR + "\ud800 the end")
    told = counters.take_env_error()
    assert (len(told), told[-9:]) == (MAX_ENV_ERROR, "? the end")
    assert counters.take_env_error() == ""


def test_late_and_missed_ticks_are_counted_and_the_lateness_of_recent_ticks_is_reported() -> None:
    counters = ActorCounters()
    assert counters.figures()["lateness_p99_seconds"] == 0.0
    for lateness in [1.0] * 10 + [0.0] * 985 + [0.0021] * 15:
        counters.note_tick(lateness, missed=int(lateness))
    found = counters.figures()
    assert (found["ticks"], found["late_ticks"], found["missed_ticks"]) == (1010, 25, 10)
    assert found["lateness_p99_seconds"] == pytest.approx(0.0021)
