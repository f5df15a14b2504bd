from __future__ import annotations

import math

from learner.ingest.counts import Histogram


def test_a_value_is_in_the_bucket_of_its_own_bound_and_in_all_wider_ones() -> None:
    histogram = Histogram((0, 1, 2.5))
    for value in (0, 0.5, 1, 2, 99):
        histogram.observe(value)
    assert list(histogram.buckets()) == [(0, 1), (1, 3), (2.5, 4), (math.inf, 5)]
    assert histogram.sum == 102.5
