from __future__ import annotations

import pytest

from actor.stat import ActorCounters, ActorFigures
from common.data import MAX_ENV_ERROR, MAX_EPISODES
from learner.shared.actor_table import REPORTED


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_the_figures_that_an_actor_reports_are_those_that_the_learner_keeps() -> None:
    assert tuple(ActorCounters().figures()) == tuple(vars(ActorFigures())) == REPORTED


def test_steps_are_counted_over_episodes() -> None:
    counters = ActorCounters()
    for done in (False, True, False):
        counters.step(0, 1.0, done)
    assert counters.env_steps == 3


def test_an_episode_has_the_sum_of_its_rewards_and_its_length() -> None:
    counters = ActorCounters()
    for reward, done in ((1.0, False), (2.5, True), (-4.0, True), (9.0, False)):
        counters.step(0, reward, done)
    assert counters.take_episodes() == ([3.5, -4.0], [2, 1], [])


def test_an_episode_with_a_reward_that_is_not_finite_is_not_reported() -> None:
    counters = ActorCounters()
    for reward, done in ((float("inf"), False), (1.0, True), (2.0, True)):
        counters.step(0, reward, done)
    assert counters.take_episodes() == ([2.0], [1], [])
    assert counters.env_steps == 3


def test_episodes_are_taken_once_and_one_that_goes_on_is_kept_whole() -> None:
    counters = ActorCounters()
    counters.step(0, 1.0, done=False)
    assert counters.take_episodes() == ([], [], [])
    counters.step(0, 1.0, done=True)
    assert counters.take_episodes() == ([2.0], [2], [])
    assert counters.take_episodes() == ([], [], [])


def test_episodes_that_were_taken_do_not_change_afterwards() -> None:
    counters = ActorCounters()
    counters.step(0, 1.0, done=True)
    taken = counters.take_episodes()
    counters.step(0, 2.0, done=True)
    assert taken == ([1.0], [1], [])


def test_the_record_has_means_of_the_last_hundred_episodes_and_of_the_successes_that_are_known() -> None:
    counters = ActorCounters()
    assert counters.episode_record() == {}
    counters.step(0, 1000.0, done=True, success=True)
    for _ in range(100):
        counters.step(0, 1.0, done=False)
        counters.step(0, 2.0, done=True)
    assert counters.episode_record() == {"train_return": 3.0, "train_length": 2.0, "train_success": 1.0}
    counters.step(0, 3.0, done=True, success=False)
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
    counters.step(0, 0.0, done=False)
    clock.now = 62.5
    counters.step(0, 0.0, done=False)
    assert counters.seconds == pytest.approx(2.5)


def test_of_more_episodes_than_a_report_may_hold_the_newest_are_kept() -> None:
    counters = ActorCounters()
    for episode in range(MAX_EPISODES + 5):
        counters.step(0, float(episode), done=True)
    returns, lengths, _ = counters.take_episodes()
    assert len(returns) == len(lengths) == MAX_EPISODES
    assert (returns[0], returns[-1]) == (5.0, MAX_EPISODES + 4.0)
    assert counters.take_episodes() == ([], [], [])


def test_each_environment_has_an_episode_of_its_own() -> None:
    counters = ActorCounters()
    for env, reward, done in ((0, 1.0, False), (1, 10.0, False), (1, 20.0, True), (0, 2.0, True), (1, 40.0, True)):
        counters.step(env, reward, done)
    assert counters.take_episodes() == ([30.0, 3.0, 40.0], [2, 2, 1], [])
    assert counters.env_steps == 5


def test_an_episode_that_was_abandoned_is_in_no_other() -> None:
    counters = ActorCounters()
    counters.step(0, 5.0, done=False)
    counters.abandon(0)
    counters.step(0, 1.0, done=True)
    assert counters.take_episodes() == ([1.0], [1], [])


def test_of_an_environments_error_the_end_of_the_newest_is_told_once_and_always_as_utf_8() -> None:
    counters = ActorCounters()
    counters.note_env_error("an older one")
    counters.note_env_error("x" * MAX_ENV_ERROR + "\ud800 the end")
    told = counters.take_env_error()
    assert (len(told), told[-9:]) == (MAX_ENV_ERROR, "? the end")
    assert counters.take_env_error() == ""
