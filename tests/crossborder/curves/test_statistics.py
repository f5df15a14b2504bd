from __future__ import annotations

import itertools
import statistics

import numpy as np
import pytest
from numpy.testing import assert_allclose

from crossborder.curves.statistics import bootstrap_interval, interquartile_mean, performance_profile


def slow_interquartile_mean(scores: list[float]) -> float:
    """Agarwal et al. 2021: leave out the lowest and the highest quarter, then take the mean."""
    ordered, quarter = sorted(scores), int(0.25 * len(scores))
    return statistics.mean(ordered[quarter : len(ordered) - quarter])


@pytest.mark.parametrize("n", range(1, 14))
def test_the_interquartile_mean_is_the_mean_of_the_middle_half(n: int) -> None:
    scores = np.random.default_rng(n).normal(size=(3, 5, n))
    found = interquartile_mean(scores)
    assert found.shape == (3, 5)
    for place in itertools.product(range(3), range(5)):
        assert_allclose(found[place], slow_interquartile_mean(scores[place].tolist()))


def test_one_run_that_failed_and_one_that_was_lucky_of_five_do_not_move_it() -> None:
    assert interquartile_mean(np.array([10.0, -1e9, 20.0, 1e9, 30.0])) == 20.0


def test_the_interval_is_that_of_all_possible_draws() -> None:
    scores = [0.0, 1.0, 5.0]
    draws = [slow_interquartile_mean(list(drawn)) for drawn in itertools.product(scores, repeat=3)]
    low, high = bootstrap_interval([np.array(scores)[:, None]], confidence=0.8, resamples=40_000)
    assert_allclose((low[0], high[0]), np.quantile(draws, [0.1, 0.9]), atol=1e-9)


def test_runs_are_drawn_task_by_task() -> None:
    many, one = np.array([[0.0], [2.0], [0.0], [2.0]]), np.array([[100.0]])
    low, high = bootstrap_interval([many, one], confidence=1.0, resamples=500)
    assert (low[0], high[0]) == (0.0, 2.0), (
        "each draw has the one run of the second task once, which the mean leaves out"
    )


def test_a_draw_takes_whole_runs_so_that_curves_of_equal_shape_have_an_interval_of_equal_width() -> None:
    base = np.random.default_rng(0).normal(size=(6, 1))
    low, high = bootstrap_interval([base + np.array([[0.0, 10.0, -3.0]])])
    assert_allclose(high - low, np.full(3, high[0] - low[0]))


def test_equal_runs_have_no_uncertainty_and_more_runs_have_less() -> None:
    low, high = bootstrap_interval([np.ones((5, 2))])
    assert (low.tolist(), high.tolist()) == ([1.0, 1.0], [1.0, 1.0])
    generator = np.random.default_rng(1)
    few, many = (bootstrap_interval([generator.normal(size=(n, 1))]) for n in (4, 64))
    assert many[1][0] - many[0][0] < few[1][0] - few[0][0]


def test_the_same_scores_have_the_same_interval() -> None:
    scores = [np.random.default_rng(3).normal(size=(5, 4))]
    assert_allclose(bootstrap_interval(scores), bootstrap_interval(scores), rtol=0)


def test_a_profile_is_the_share_of_runs_that_reach_each_threshold() -> None:
    tasks = [np.array([0.0, 0.5, 1.0]), np.array([0.5])]
    reached, low, high = performance_profile(tasks, np.array([0.0, 0.5, 0.51, 2.0]))
    assert reached.tolist() == [1.0, 0.75, 0.25, 0.0]
    assert (low[0], high[0], low[-1], high[-1]) == (1.0, 1.0, 0.0, 0.0)
    assert (low[1], high[1]) == (0.25, 1.0), "the one run of the second task is in each draw"
