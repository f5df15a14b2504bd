"""Rollouts, against ones worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.errors import CheckpointError, ConfigError
from learner.replay.queue import QueueReplay
from learner.replay.reader import NothingToDrawError
from learner.views.rollouts import Rollouts
from learner.views.staleness import AgeWeights
from learner.views.transitions import Transitions
from tests.learner.views.lanes import SCHEMA, Lanes


def drain(replay: QueueReplay) -> list[list[int]]:
    """The rows of the steps of all rollouts that can be drawn."""
    found: list[list[int]] = []
    while True:
        try:
            found += replay.batch(1)["obs/at"].tolist()
        except NothingToDrawError:
            return found


def test_a_rollout_goes_on_in_the_next_episode_and_its_last_step_gives_only_the_observation(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(2, 1, 6, lane=1)  # Rows 0 1 and final 2, 3 and final 4, 5 to 10 and final 11.
    view = Rollouts(SCHEMA, length=4)
    assert lanes.drawable(view) == [6], "steps 0, 1, 3 and 5, and step 6, which gives its observation"
    batch = lanes.draw(view, [6])
    assert batch["obs/at"].tolist() == [[0, 1, 3, 5]]
    assert batch["next_obs/at"].tolist() == [[1, 2, 4, 6]]
    assert batch["truncated"].tolist() == [[False, True, True, False]]
    assert batch["reward"].tolist() == [[1, 2, 1, 1]]
    assert batch["action"].tolist() == [[0, 10, 30, 50]]
    assert batch["version"].tolist() == [[0, 0, 1, 2]]
    assert batch["state/h"].tolist() == [[0, 0, 0]], "of the first step alone"
    assert not {"first", "final", "lane", "mask"} & batch.keys()


def test_lanes_that_end_episodes_at_different_times_have_their_rollouts_ready_at_the_same_step(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    replay = QueueReplay(lanes.memory, Rollouts(SCHEMA, length=3), seed=0)
    for t in range(12):  # Lane 0 ends its episode at every second step, lane 1 never.
        rows = [lanes.row(t % 2, 2, 0, done=True), lanes.row(t, 100, 1)]
        if t % 2:
            rows.append(lanes.row(2, 2, 0, final=True))
        lanes.write(rows)
        assert len(replay) == (8 if t % 4 == 3 else 0)
        if t % 4 == 3:
            replay.batch(2)
            assert replay.sampled == replay.inserted, "the step that gives its observation counts as drawn"


def test_however_rows_arrive_each_step_is_drawn_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lanes = Lanes(tmp_path, capacity=120)
    replay = QueueReplay(lanes.memory, Rollouts(SCHEMA, length=4), seed=0)
    positions, lengths = [0, 0, 0], [1, 3, 8]
    steps: dict[int, list[int]] = {0: [], 1: [], 2: []}
    drawn: list[list[int]] = []
    for _ in range(60):
        rows = list[dict[str, float]]()
        for _ in range(int(rng.integers(1, 12))):
            lane = int(rng.integers(3))
            steps[lane].append(lanes.memory.committed + len(rows))
            rows.append(lanes.row(positions[lane], lengths[lane], lane, done=True))
            positions[lane] += 1
            if positions[lane] == lengths[lane]:
                rows.append(lanes.row(positions[lane], lengths[lane], lane, final=True))
                positions[lane], lengths[lane] = 0, int(rng.integers(1, 12))
        lanes.write(rows)
        drawn += drain(replay)
    expected = [mine[i : i + 4] for mine in steps.values() for i in range(0, len(mine) - 4, 5)]
    assert sorted(drawn) == sorted(expected)
    assert replay.lost == 0


def test_a_resumed_queue_goes_on_with_the_same_rollouts_although_their_lane_began_long_ago(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, capacity=30)
    view = Rollouts(SCHEMA, length=3)
    before = QueueReplay(lanes.memory, view, seed=0)
    for _ in range(21):
        lanes.play(5)  # 105 steps, so the next rollout begins with the second of the next five.
        drawn = drain(before)
    other = Rollouts(SCHEMA, length=3)
    other.weigh = AgeWeights(SCHEMA, 1.0).add
    after = QueueReplay(lanes.memory, other, seed=0)
    after.restore(before.state())
    lanes.play(5)
    found = drain(after)
    assert found == drain(before)
    assert found[0][0] == drawn[-1][-1] + 2


def test_the_state_of_another_view_is_refused(tmp_path: Path) -> None:
    memory = Lanes(tmp_path).memory
    other = QueueReplay(memory, Transitions(SCHEMA), seed=0)
    with pytest.raises(CheckpointError, match="'end'"):
        QueueReplay(memory, Rollouts(SCHEMA, length=3), seed=0).restore(other.state())


def test_a_rollout_of_which_a_row_was_overwritten_or_never_came_is_not_drawn(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, capacity=10)
    view = Rollouts(SCHEMA, length=3)
    for start in range(0, 20, 5):
        lanes.write([lanes.row(t, 100) for t in range(start, start + 5)])
        found = lanes.drawable(view)
    assert found == [15, 19], "the rollout of row 11 began with row 8"
    lanes.play(6, ends=False)  # The episode before was cut off, and with it a rollout.
    assert lanes.drawable(view) == [19, 23]


def test_frames_are_stacked_within_an_episode(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(2, 6)
    batch = lanes.draw(Rollouts(SCHEMA, 2, length=3), [4])
    assert batch["obs/at"].tolist() == [[[0, 0], [0, 1], [3, 3]]]
    assert batch["next_obs/at"].tolist() == [[[0, 1], [1, 2], [3, 4]]]


def test_a_length_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected length >= 1, found 0"):
        Rollouts(SCHEMA, length=0)
