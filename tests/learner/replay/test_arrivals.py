"""Rows at which draws can begin are found once, when the rows that they wait for arrive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from learner.replay.arrivals import find_arrivals
from learner.replay.view import View
from learner.views.sequences import Sequences
from learner.views.transitions import Transitions
from tests.learner.views.lanes import SCHEMA, Lanes

VIEWS = [
    Transitions(SCHEMA),
    Transitions(SCHEMA, discount_factor=0.9, n=3),
    Transitions(SCHEMA, 2),
    Sequences(SCHEMA, length=4),
    Sequences(SCHEMA, length=4, across=True),
    Sequences(SCHEMA, length=6, burn_in=3, period=2),
]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("seed", range(3))
def test_all_rows_that_can_be_drawn_are_found_once(tmp_path: Path, view: View, seed: int) -> None:
    lanes, rng, found, seen = Lanes(tmp_path), np.random.default_rng(seed), list[int](), 0
    for _ in range(30):
        lengths = [int(n) for n in rng.integers(1, 8, rng.integers(1, 4))]
        lanes.play(*lengths, ends=bool(rng.integers(2)), lane=int(rng.integers(3)))
        if rng.integers(2):
            lanes.play_in_turn(lengths)
        found += find_arrivals(lanes.reader(view), seen).tolist()
        seen = lanes.memory.committed
        assert sorted(found) == lanes.drawable(view)
        assert len(set(found)) == len(found)
