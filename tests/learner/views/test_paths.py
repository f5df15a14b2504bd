"""Stacks of frames are made of rows, one frame each."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from learner.replay.uniform import UniformReplay
from learner.views.sequences import Sequences
from learner.views.transitions import Transitions
from tests.learner.views.lanes import SCHEMA, Lanes


def test_the_first_frame_is_repeated_at_the_beginning_of_an_episode(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(5, 2)
    batch = lanes.draw(Transitions(SCHEMA, 3), [0, 1, 4, 6, 7])
    assert batch["obs/at"].tolist() == [[0, 0, 0], [0, 0, 1], [2, 3, 4], [6, 6, 6], [6, 6, 7]]
    assert batch["next_obs/at"].tolist() == [[0, 0, 1], [0, 1, 2], [3, 4, 5], [6, 6, 7], [6, 7, 8]]
    assert batch["obs/frame"].shape == (5, 3, 2)
    assert batch["reward"].tolist() == [1, 2, 16, 1, 2]


def test_stacks_of_n_step_transitions_end_at_their_own_rows(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(6)
    batch = lanes.draw(Transitions(SCHEMA, 2, 0.5, n=3), [0, 3, 5])
    assert batch["obs/at"].tolist() == [[0, 0], [2, 3], [4, 5]]
    assert batch["next_obs/at"].tolist() == [[2, 3], [5, 6], [5, 6]]


def test_sequences_have_a_stack_at_each_step(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(4)
    batch = lanes.draw(Sequences(SCHEMA, 2, length=3), [0, 2])
    assert batch["obs/at"].tolist() == [[[0, 0], [0, 1], [1, 2], [2, 3]], [[1, 2], [2, 3], [3, 4], [3, 4]]]
    assert batch["action"].shape == (2, 3)


def test_a_row_whose_stack_has_been_overwritten_cannot_be_drawn(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, capacity=10)
    lanes.play(7, ends=False)
    view = Transitions(SCHEMA, 3)
    assert lanes.drawable(view) == [0, 1, 2, 3, 4, 5]
    lanes.play(4, lane=1)  # Rows 7 to 11; rows 0 and 1 are gone.
    assert lanes.drawable(view) == [4, 5, 7, 8, 9, 10]
    replay = UniformReplay(lanes.memory, view, seed=0)
    assert replay.batch(300)["obs/at"].min() == 2


def test_a_row_after_dropped_rows_has_no_stack_until_enough_rows_follow(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(2, ends=False)
    row = {"reward": 1.0, "terminated": False, "truncated": False, "first": False, "final": False, "lane": 0}
    lanes.write([row] * 4, follows=False)
    assert lanes.drawable(Transitions(SCHEMA)) == [0, 2, 3, 4]
    assert lanes.drawable(Transitions(SCHEMA, 2)) == [0, 3, 4]


def test_the_lowest_row_of_a_draw_is_that_of_its_oldest_frame(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(6)
    for view in (Transitions(SCHEMA, 3), Sequences(SCHEMA, 3, length=2)):
        plan = view.plan(lanes.reader(view), np.array([0, 1, 4]))
        assert plan.lowest.tolist() == [0, 0, 2]
