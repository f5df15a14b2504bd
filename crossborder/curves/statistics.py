"""Scores of a few runs as one number with its uncertainty, by the method of Agarwal et al. 2021 (arXiv:2108.13264).

The interquartile mean is the mean of the middle half of all scores. One lucky or failed run moves it little, and it
uses more of the runs than the median does. The interval comes from a stratified bootstrap: it resamples the runs of
each task many times with replacement, and its ends are quantiles of the interquartile means of these draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from common.data import Array

CONFIDENCE = 0.95
RESAMPLES = 2000


def interquartile_mean(scores: Array) -> Array:
    """The mean over the last axis without its lowest and its highest quarter, ``[...]`` float64.

    Of n scores ``n // 4`` are left out at each end, as by ``scipy.stats.trim_mean(scores, 0.25)``. For up to three
    scores it is the plain mean.

    Args:
        scores: ``[..., n]``.
    """
    cut = scores.shape[-1] // 4
    ordered = np.sort(np.asarray(scores, np.float64), axis=-1)
    middle: Array = ordered[..., cut : scores.shape[-1] - cut].mean(axis=-1)
    return middle


def bootstrap_interval(
    tasks: Sequence[Array],
    *,
    statistic: Callable[[Array], Array] = interquartile_mean,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> tuple[Array, Array]:
    """The interval of a statistic over all runs of all tasks, at each point of their curves.

    A draw takes whole runs, so that it has the same runs at all points. The same scores have the same interval.

    Args:
        tasks: of each task the scores of its runs, ``[runs, points]``; tasks may have different numbers of runs.
        statistic: of scores, over their last axis.
        confidence: the share of draws within the interval.
        resamples: the number of draws.

    Returns:
        The lower and the upper end, ``[points]`` each.
    """
    generator = np.random.default_rng(0)
    drawn = [generator.integers(len(scores), size=(resamples, len(scores))) for scores in tasks]
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    found = np.empty((2, tasks[0].shape[1]))
    for point in range(tasks[0].shape[1]):  # One point at a time: all draws of all points together may not fit.
        again = [scores[:, point][rows] for scores, rows in zip(tasks, drawn, strict=True)]
        found[:, point] = np.quantile(statistic(np.concatenate(again, axis=1)), ends)
    return found[0], found[1]


def summarize(tasks: Sequence[Array]) -> tuple[float, float, float]:
    """The interquartile mean over all runs of all tasks, and the ends of its interval.

    Args:
        tasks: of each task the scores of its runs, ``[runs]``, on one scale.
    """
    low, high = bootstrap_interval([scores[:, None] for scores in tasks])
    return float(interquartile_mean(np.concatenate(tasks))), float(low[0]), float(high[0])


def performance_profile(tasks: Sequence[Array], thresholds: Array) -> tuple[Array, Array, Array]:
    """The share of runs that score at least each threshold, over all tasks, and its interval.

    The paper calls it the run-score distribution.

    Args:
        tasks: of each task the scores of its runs, ``[runs]``, on one scale.
        thresholds: ``[points]``.

    Returns:
        The share, and the lower and the upper end of its interval, ``[points]`` each.
    """
    reached = [(scores[:, None] >= thresholds).astype(np.float64) for scores in tasks]
    return np.concatenate(reached).mean(axis=0), *bootstrap_interval(
        reached, statistic=lambda drawn: drawn.mean(axis=-1)
    )
