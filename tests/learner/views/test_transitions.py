"""Transitions of one step and of n, against a slow formula."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.errors import ConfigError
from learner.replay.uniform import UniformReplay
from learner.views.transitions import Transitions
from tests.learner.replay.memories import SCHEMA as ITEMS
from tests.learner.views.lanes import SCHEMA, Lanes


def test_a_transition_has_the_columns_of_its_step_and_the_next_observation(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play_in_turn([3, 2])  # Rows 0 2 4 6 of lane 0, rows 1 3 5 of lane 1.
    batch = lanes.draw(Transitions(SCHEMA), [2, 3, 4])
    assert list(batch) == [
        *("obs/at", "obs/frame", "action", "reward", "next_obs/at", "next_obs/frame"),
        *("terminated", "truncated", "logp", "state/h", "version"),
    ]
    assert batch["obs/at"].tolist() == [2, 3, 4]
    assert batch["next_obs/at"].tolist() == [4, 5, 6]
    assert batch["next_obs/frame"].tolist() == [[4, 4], [5, 5], [6, 6]]
    assert batch["action"].tolist() == [20, 30, 40]
    assert batch["reward"].tolist() == [2, 2, 4]
    assert batch["terminated"].tolist() == [False, False, True]
    assert batch["truncated"].tolist() == [False, True, False]
    assert batch["version"].tolist() == [1, 1, 2]


def test_final_rows_and_the_newest_row_of_a_lane_cannot_be_drawn(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(3, 2, ends=False)
    assert lanes.drawable(Transitions(SCHEMA)) == [0, 1, 2, 4]
    lanes.write([{"reward": 0, "terminated": False, "truncated": False, "first": False, "final": True, "lane": 0}])
    assert lanes.drawable(Transitions(SCHEMA)) == [0, 1, 2, 4, 5]


def test_the_last_row_of_a_lost_episode_is_never_drawn(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(3, ends=False)
    lanes.play(2)
    assert lanes.drawable(Transitions(SCHEMA)) == [0, 1, 3, 4]
    assert lanes.drawable(Transitions(SCHEMA, discount_factor=0.5, n=2)) == [0, 3, 4]


@pytest.mark.parametrize(("n", "expected"), [(1, [30, 40]), (2, [40, 50])])
def test_the_next_action_is_the_one_that_was_taken_after_the_next_observation(
    tmp_path: Path, n: int, expected: list[int]
) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(6, ends=False)
    batch = lanes.draw(Transitions(SCHEMA, discount_factor=0.9, n=n, next_actions=True), [2, 3])
    assert batch["next_action"].tolist() == expected
    assert "next_action" not in lanes.draw(Transitions(SCHEMA, discount_factor=0.9, n=n), [2, 3])


@pytest.mark.parametrize("n", [2, 3, 5])
def test_n_steps_are_folded_as_the_formula_says(tmp_path: Path, n: int) -> None:
    lanes, gamma = Lanes(tmp_path), 0.9
    episodes = lanes.play_in_turn([7, 2, 1, 4])
    view = Transitions(SCHEMA, discount_factor=gamma, n=n)
    steps = [(rows, t) for rows in episodes for t in range(len(rows) - 1)]
    assert lanes.drawable(view) == sorted(rows[t] for rows, t in steps)
    batch = lanes.draw(view, [rows[t] for rows, t in steps])
    for i, (rows, t) in enumerate(steps):
        k = min(n, len(rows) - 1 - t)
        lane = episodes.index(rows)
        is_end = t + k == len(rows) - 1
        assert batch["obs/at"][i] == rows[t]
        assert batch["action"][i] == 10 * rows[t]
        assert batch["next_obs/at"][i] == rows[t + k]
        assert batch["reward"][i] == pytest.approx(sum(gamma**j * 2.0 ** (t + j) for j in range(k)))
        assert batch["discount"][i] == pytest.approx(gamma**k)
        assert batch["terminated"][i] == (is_end and lane % 2 == 0)
        assert batch["truncated"][i] == (is_end and lane % 2 == 1)
    assert batch["reward"].dtype == batch["discount"].dtype == np.float32


def test_n_steps_wait_until_they_are_known_or_the_episode_has_ended(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(6, ends=False)
    assert lanes.drawable(Transitions(SCHEMA, discount_factor=1.0, n=3)) == [0, 1, 2]


def test_a_replay_draws_the_same_transitions_at_any_place_of_the_ring(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, capacity=64)
    replay = UniformReplay(lanes.memory, Transitions(SCHEMA, discount_factor=0.5, n=2), seed=0)
    for _ in range(40):
        lanes.play_in_turn([5, 3])
        batch = replay.batch(64)
        ahead = batch["next_obs/at"] - batch["obs/at"]
        assert (batch["action"] == 10 * batch["obs/at"]).all()
        assert set(ahead.tolist()) <= {1, 2, 3, 4}
        assert batch["obs/at"].min() >= lanes.memory.first()


def test_wrong_parameters_and_schemas_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"params\.n: expected 1 or more, found 0"):
        Transitions(SCHEMA, n=0)
    with pytest.raises(ConfigError, match=r"3 steps need an agent with a discount_factor from 0 to 1, a parameter of"):
        Transitions(SCHEMA, n=3)
    with pytest.raises(ConfigError, match=r"expected rows with obs, .*found the columns \['n', 'pair'\]"):
        Transitions(ITEMS)


def test_n_steps_end_at_a_termination_after_which_the_episode_goes_on(tmp_path: Path) -> None:
    """As a map of rows has it that calls the loss of a life an end."""
    lanes = Lanes(tmp_path)
    rows = [lanes.row(t, 7, 0, final=False, done=False) for t in range(7)]
    rows[2]["terminated"] = True
    lanes.write(rows)
    batch = lanes.draw(Transitions(SCHEMA, discount_factor=0.5, n=3), [0, 1, 2, 3])
    assert batch["reward"].tolist() == [1 + 1 + 1, 2 + 2, 4, 8 + 8 + 8]
    assert batch["discount"].tolist() == [0.125, 0.25, 0.5, 0.125]
    assert batch["terminated"].tolist() == [True, True, True, False]
    assert batch["next_obs/at"].tolist() == [3, 3, 3, 6]
