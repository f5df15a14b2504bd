from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from common.errors import ConfigError
from crossborder.curves.bands import bring_together, common_places
from crossborder.curves.learning_curve import Curve


def curve(x: list[float], y: list[float], task: str = "A", run: str = "run") -> Curve:
    return Curve(Path(run), np.array(x, float), np.array(y, float), {"env.params.id": task})


def test_runs_that_were_scored_at_the_same_places_keep_them() -> None:
    band = bring_together([curve([10, 20, 40], [1, 2, 3]), curve([10, 20, 40], [3, 4, 5])])
    assert (band.x.tolist(), band.middle.tolist(), band.runs) == ([10, 20, 40], [2, 3, 4], 2)
    assert (band.low <= band.middle).all()
    assert (band.middle <= band.high).all()


def test_runs_that_were_scored_at_different_places_are_read_on_the_line_between_two_scores() -> None:
    band = bring_together([curve([0, 10], [0, 10]), curve([0, 4, 10], [0, 8, 20])], points=6)
    assert band.x.tolist() == [0, 2, 4, 6, 8, 10]
    assert_allclose(band.middle, [0, 3, 6, 9, 12, 15])


def test_a_group_ends_with_its_shortest_run_or_holds_its_last_value() -> None:
    curves = [curve([10, 20, 30], [1, 1, 1]), curve([10, 20], [1, 5])]
    assert bring_together(curves).x.tolist() == [10, 20]
    held = bring_together(curves, hold=True)
    assert (held.x.tolist(), held.middle.tolist()) == ([10, 20, 30], [1, 3, 3])


def test_a_group_begins_where_its_last_run_begins() -> None:
    assert common_places([curve([0, 10], [0, 0]), curve([5, 10], [0, 0])], points=3).tolist() == [5, 7.5, 10]
    assert common_places([curve([0, 10], [0, 0]), curve([10, 20], [0, 0])]).tolist() == [10]


def test_runs_without_a_common_place_are_refused() -> None:
    with pytest.raises(ConfigError, match="a ends at 10, before b begins at 20"):
        bring_together([curve([0, 10], [0, 0], run="a"), curve([20, 30], [0, 0], run="b")])


def test_one_run_has_no_interval() -> None:
    band = bring_together([curve([1, 2], [3, 4])])
    assert band.runs == 1
    assert band.low.tolist() == band.middle.tolist() == band.high.tolist() == [3, 4]


@pytest.mark.parametrize("ranges", [None, {"A": (0.0, 10.0)}])
def test_scores_of_several_tasks_need_a_range_for_each(ranges: Any) -> None:
    curves = [curve([1, 2], [0, 10], "A"), curve([1, 2], [100, 300], "B")]
    with pytest.raises(ConfigError, match="expected a range for the task"):
        bring_together(curves, ranges=ranges)


def test_scores_of_several_tasks_are_shares_of_their_ranges() -> None:
    curves = [curve([1, 2], [0, 10], "A"), curve([1, 2], [100, 300], "B")]
    band = bring_together(curves, ranges={"A": (0.0, 10.0), "B": (100.0, 200.0)})
    assert band.middle.tolist() == [0.0, 1.5]


def test_the_order_of_the_runs_does_not_matter() -> None:
    curves = [curve([1, 2], [float(i), i * i], "AB"[i % 2]) for i in range(7)]
    ranges = {"A": (0.0, 1.0), "B": (0.0, 2.0)}
    found, reverse = bring_together(curves, ranges=ranges), bring_together(curves[::-1], ranges=ranges)
    assert_allclose(found.middle, reverse.middle)
