from __future__ import annotations

import dataclasses
import math

import pytest

from learner.records.status import format_return
from tests.learner.records.test_progress import BEFORE, STATUS


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (141.25, "141.2"),
        (-3.0, "-3.00"),
        (0.96, "0.96"),
        (3.4e38, "3.4e+38"),
        (None, "-"),
        (-math.inf, "-inf"),
        (0.0, "0.00"),
    ],
)
def test_a_return_is_short_whatever_its_size(value: float | None, text: str) -> None:
    assert format_return(value) == text


def test_the_replay_ratio_is_of_all_items_and_zero_before_the_first() -> None:
    assert dataclasses.replace(STATUS, inserted=200, sampled=500).replay_ratio == 2.5
    assert dataclasses.replace(STATUS, inserted=0, sampled=0).replay_ratio == 0.0


def test_rates_are_those_since_the_status_before_and_not_those_of_a_record_between_two_batches() -> None:
    assert STATUS.rates_since(BEFORE) == (650.0, 1300.0)
    assert STATUS.rates_since(STATUS) == (0.0, 0.0)


def test_a_run_with_few_opt_steps_per_second_does_not_seem_to_stand() -> None:
    assert " 0.5 opt/s, " in dataclasses.replace(STATUS, opt_steps=BEFORE.opt_steps + 1).line(BEFORE)


def test_the_line_has_all_that_a_log_needs() -> None:
    line = dataclasses.replace(STATUS, seconds=18.4, opt_steps=9120, max_opts=80000, replay_size=18240).line(BEFORE)
    for part in (
        "18 s, opt step 9120/80000,",
        "opt/s",
        "steps/s",
        "actors, return",
        "replay 18240 steps",
        "policy lag",
    ):
        assert part in line
