"""Curves of several runs as one: on common points, with the interquartile mean and its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import numpy as np

from common.data import Array
from common.errors import ConfigError
from crossborder.curves.learning_curve import Curve
from crossborder.curves.statistics import bootstrap_interval, interquartile_mean

POINTS = 100
Ranges = Mapping[str, tuple[float, float]]
"""By task, the scores that become 0 and 1."""


@dataclass(frozen=True)
class Band:
    """The curves of a group of runs as one; all arrays are ``[points]``, float64."""

    x: Array
    middle: Array
    """The interquartile mean."""
    low: Array
    high: Array
    """The ends of its interval, equal to ``middle`` if there is only one run."""
    runs: int


def bring_together(
    curves: Sequence[Curve],
    *,
    ranges: Ranges | None = None,
    hold: bool = False,
    points: int = POINTS,
) -> Band:
    """Bring the curves of a group of runs to common points and take their interquartile mean.

    Runs that were scored at the same places keep these places. Other runs are read at evenly spaced places, by linear
    interpolation between two scores. The group begins where its last run begins, and each point has all runs of the
    group.

    Args:
        curves: of the runs of the group, at least one.
        ranges: of each task the scores that become 0 and 1; needed if there are several tasks.
        hold: False: the group ends where its shortest run ends. True: it ends with its longest run, and a run that ends
            before keeps its last value, which is right for runs that end as soon as they reach a score.
        points: the number of common places, if runs were scored at different places.

    Raises:
        ConfigError: there are several tasks and one has no range; or the runs have no place in common.
    """
    curves = sorted(curves, key=attrgetter("task"))
    by_task = {task: list(group) for task, group in groupby(curves, key=attrgetter("task"))}
    places = common_places(curves, hold=hold, points=points)
    tasks = []
    for task, members in by_task.items():
        scores = np.array([np.interp(places, curve.x, curve.y) for curve in members])  # [runs, points]
        low, high = _range_of(task, ranges or {}, is_only=len(by_task) == 1)
        tasks.append((scores - low) / (high - low))
    middle = interquartile_mean(np.concatenate(tasks).T)
    if len(curves) == 1:
        return Band(places, middle, middle, middle, 1)
    low_end, high_end = bootstrap_interval(tasks)
    return Band(places, middle, low_end, high_end, len(curves))


def _range_of(task: str, ranges: Ranges, *, is_only: bool) -> tuple[float, float]:
    if task in ranges:
        return ranges[task]
    if is_only:
        return 0.0, 1.0
    raise ConfigError(
        f"expected a range for the task {task}, found none: scores of several tasks are brought together as shares of "
        f"a range, --range {task}=LOW:HIGH"
    )


def common_places(curves: Sequence[Curve], *, hold: bool = False, points: int = POINTS) -> Array:
    """The places at which all curves of a group are read, ``[n]``; see ``bring_together``.

    Raises:
        ConfigError: a run ends before another begins.
    """
    begin = max(curve.x[0] for curve in curves)
    last = [curve.x[-1] for curve in curves]
    end = max(last) if hold else min(last)
    if end < begin:
        ended, late = (min(curves, key=lambda c: c.x[-1]).run, max(curves, key=lambda c: c.x[0]).run)
        raise ConfigError(
            f"{ended} ends at {end:g}, before {late} begins at {begin:g}: they have no place in common; --over "
            "opt-steps compares them by opt steps, and --hold keeps the last value of a run that ends early"
        )
    longest = max(curves, key=lambda curve: len(curve.x)).x
    if all(np.array_equal(curve.x, longest[: len(curve.x)]) for curve in curves):
        places: Array = longest[longest <= end]
        return places
    return np.linspace(begin, end, points) if end > begin else np.array([end])
