"""Sequences of steps, against ones worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from learner.replay.uniform import UniformReplay
from learner.views.sequences import Sequences
from tests.learner.views.lanes import SCHEMA, Lanes


def test_a_sequence_has_all_steps_one_more_observation_and_the_state_before_the_first(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play_in_turn([5, 5])  # Rows 0 2 4 6 8 10 of lane 0.
    batch = lanes.draw(Sequences(SCHEMA, length=3), [2, 1])
    assert batch["obs/at"].tolist() == [[2, 4, 6, 8], [1, 3, 5, 7]]
    assert batch["action"].tolist() == [[20, 40, 60], [10, 30, 50]]
    assert batch["reward"].tolist() == [[2, 4, 8], [1, 2, 4]]
    assert batch["mask"].all()
    assert batch["first"].tolist() == [[False] * 4, [True, False, False, False]]
    assert batch["state/h"].tolist() == [[2, 2, 2], [1, 1, 1]]
    assert batch["logp"].tolist() == [[-2, -4, -6], [-1, -3, -5]]
    assert batch["version"].tolist() == [[1, 2, 3], [0, 1, 2]]
    assert not {"final", "lane"} & batch.keys()


def test_after_the_end_of_the_episode_its_last_observation_is_repeated_under_the_mask(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(3, 4)
    batch = lanes.draw(Sequences(SCHEMA, length=4), [1, 4])
    assert batch["obs/at"].tolist() == [[1, 2, 3, 3, 3], [4, 5, 6, 7, 8]]
    assert batch["mask"].tolist() == [[True, True, False, False], [True] * 4]
    assert batch["terminated"].tolist() == [[False, True, False, False], [False, False, False, True]]
    assert batch["reward"].tolist() == [[2, 4, 0, 0], [1, 2, 4, 8]]
    assert not batch["first"][0].any()


def test_a_sequence_is_drawn_when_all_its_steps_are_known_or_the_episode_has_ended(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(3, 5, ends=False)  # Rows 0 to 3, and 4 to 8.
    assert lanes.drawable(Sequences(SCHEMA, length=3)) == [0, 1, 2, 4, 5]
    lanes.play(2)  # The episode before is lost.
    assert lanes.drawable(Sequences(SCHEMA, length=3)) == [0, 1, 2, 4, 5, 9, 10]


def test_across_episodes_a_final_row_takes_a_place_under_the_mask(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(2, 5, ends=False)  # Rows 0 1 and final 2, then 3 to 7.
    view = Sequences(SCHEMA, length=4, across=True)
    assert lanes.drawable(view) == [0, 1, 3]
    batch = lanes.draw(view, [0, 1])
    assert batch["obs/at"].tolist() == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert batch["mask"].tolist() == [[True, True, False, True], [True, False, True, True]]
    assert batch["first"].tolist() == [[True, False, False, True, False], [False, False, True, False, False]]


def test_each_sequence_has_a_warm_step_beyond_its_burn_in_or_after_the_beginning_of_its_episode(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(2, 4)  # Rows 0 1 and 3 to 6.
    view = Sequences(SCHEMA, length=5, burn_in=2)
    assert lanes.drawable(view) == [0, 3, 4]
    batch = lanes.draw(view, [0, 3, 4])
    assert batch["mask"].tolist() == [[True] * 2 + [False] * 3, [True] * 4 + [False], [True] * 3 + [False] * 2]
    assert batch["warm"].tolist() == [
        [True] * 2 + [False] * 3,
        [True] * 4 + [False],
        [False, False, True, False, False],
    ]


def test_without_burn_in_all_steps_that_are_there_are_warm(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(4)
    batch = lanes.draw(Sequences(SCHEMA, length=3), [1, 2])
    assert batch["warm"].tolist() == batch["mask"].tolist() == [[True] * 3, [True, True, False]]


def test_across_episodes_the_steps_of_the_next_one_are_warm(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(2, 5, ends=False)  # Rows 0 1 and final 2, then 3 to 7.
    batch = lanes.draw(Sequences(SCHEMA, length=5, burn_in=4, across=True), [1])
    assert batch["mask"].tolist() == [[True, False, True, True, True]]
    assert batch["warm"].tolist() == [[False, False, True, True, True]]


def test_with_a_period_sequences_begin_at_regular_steps_of_their_episode(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, capacity=100)
    view = Sequences(SCHEMA, length=4, period=2)
    lanes.play_in_turn([5, 3])  # Rows 0 2 4 6 8 9 of lane 0, and 1 3 5 7 of lane 1.
    assert lanes.drawable(view) == [0, 1, 4, 5, 8]
    lanes.play(3, ends=False)
    lanes.play(3, lane=1)
    rows = [i for i in lanes.drawable(view) if i >= 10]
    assert rows == [13, 15], "lane 0 has not gone far enough"


def test_with_a_period_nothing_is_drawn_of_an_episode_whose_beginning_is_gone(tmp_path: Path) -> None:
    kept, fresh = (Sequences(SCHEMA, length=2, period=2) for _ in range(2))
    lanes = Lanes(tmp_path, capacity=12)
    lanes.play(9, ends=False)
    assert lanes.drawable(kept) == [0, 2, 4, 6]
    for _ in range(4):
        lanes.play(4, lane=1)
        first = lanes.memory.first()
        found = lanes.drawable(kept)
        assert found == lanes.drawable(fresh) == lanes.drawable(Sequences(SCHEMA, length=2, period=2))
        assert all(i >= first for i in found)
    assert found == [19, 21, 24, 26], "of the episodes that began at 19 and 24"


def test_sampled_counts_the_steps_of_sequences_and_not_what_is_under_the_mask(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(30)
    replay = UniformReplay(lanes.memory, Sequences(SCHEMA, length=4), seed=0)
    steps = sum(int(replay.batch(5)["mask"].sum()) for _ in range(3))
    assert steps < 60, "some sequences reach the end of the episode"
    assert (replay.sampled, replay.inserted, len(replay)) == (steps, 30, 30)


@pytest.mark.parametrize("params", [{"length": 0}, {"length": 3, "burn_in": 3}, {"length": 3, "period": 0}])
def test_wrong_parameters_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected length >= 1, 0 <= burn_in < length and period >= 1, found"):
        Sequences(SCHEMA, **params)


@pytest.mark.parametrize(
    ("params", "overlaps"),
    [
        ({"period": 4}, False),
        ({"period": 9}, False),
        ({"period": 3}, True),
        ({}, True),
        ({"period": 4, "across": True}, True),
    ],
)
def test_two_sequences_have_a_step_in_common_unless_the_period_is_their_length(
    params: dict[str, Any], overlaps: bool
) -> None:
    assert Sequences(SCHEMA, length=4, **params).overlaps is overlaps
