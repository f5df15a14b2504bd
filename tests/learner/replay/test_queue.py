"""Every row is drawn once, in order."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from common.errors import CheckpointError, ConfigError
from learner.replay.queue import QueueReplay
from learner.replay.reader import NothingToDrawError
from learner.replay.uniform import UniformReplay
from learner.views.rollouts import Rollouts
from learner.views.sequences import Sequences
from learner.views.transitions import Transitions
from tests.learner.views.lanes import SCHEMA, Lanes

VIEW = Transitions(SCHEMA)


def drawn(replay: QueueReplay, size: int) -> list[int]:
    return [int(n) for n in replay.batch(size)["obs/at"]]


def test_each_row_is_drawn_once_in_the_order_of_arrival(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    replay = QueueReplay(lanes.memory, VIEW, seed=0)
    lanes.play(4, 3)  # Final rows are 4 and 8.
    assert len(replay) == 7
    assert drawn(replay, 3) == [0, 1, 2]
    lanes.play(2)
    assert drawn(replay, 5) == [3, 5, 6, 7, 9]
    assert (len(replay), replay.waiting, replay.sampled, replay.lost) == (1, 1, 8, 0)


def test_a_batch_waits_until_there_are_enough_rows(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    replay = QueueReplay(lanes.memory, VIEW, seed=0)
    assert len(replay) == 0
    lanes.play(3, ends=False)
    with pytest.raises(NothingToDrawError, match="nothing to draw from yet"):
        replay.batch(3)
    lanes.play(4, lane=1)
    assert drawn(replay, 3) == [0, 1, 3]


def test_sequences_with_a_period_take_every_step_once(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    replay = QueueReplay(lanes.memory, Sequences(SCHEMA, length=4, period=4), seed=0)
    lanes.play(9, 4, 1)  # Steps 0 to 8, 10 to 13 and 15.
    assert (len(replay), replay.waiting) == (20, 14)
    batch = replay.batch(5)
    assert batch["obs/at"][:, :-1][batch["mask"]].tolist() == [*range(9), *range(10, 14), 15]
    assert replay.waiting == 0
    assert replay.sampled == replay.inserted == 14, "what fills a sequence up after its last step is no step"


def test_rows_that_are_overwritten_before_they_are_drawn_are_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lanes = Lanes(tmp_path, capacity=10)
    replay = QueueReplay(lanes.memory, VIEW, seed=0)
    lanes.play(8)
    assert drawn(replay, 2) == [0, 1]
    with caplog.at_level(logging.WARNING):
        lanes.play(4)  # Rows 9 to 13; the oldest is now row 4.
        assert drawn(replay, 2) == [4, 5]
    assert replay.lost == 2
    assert "2 draws were never made" in caplog.text


def test_a_batch_for_which_the_replay_has_no_room_is_refused(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, capacity=20)
    replay = QueueReplay(lanes.memory, Rollouts(SCHEMA, length=5), seed=0)
    lanes.play(19)
    assert len(replay.batch(3)["reward"]) == 3
    with pytest.raises(NothingToDrawError):
        replay.batch(3)
    with pytest.raises(ConfigError, match=r"replay\.capacity: expected at least 24 rows, for a batch of 4, found 20"):
        replay.batch(4)


def test_excluded_rows_are_passed_over(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(6)
    lanes.memory.exclude(np.array([2]))
    replay = QueueReplay(lanes.memory, VIEW, seed=0)
    assert drawn(replay, 1) == [0]
    assert drawn(replay, 2) == [4, 3], "row 1 is followed by row 2: another draw takes its place"
    assert replay.lost == 1


def test_rows_wait_again_if_their_batch_cannot_be_made(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(4)
    lanes.memory.exclude(np.array([2]))
    replay = QueueReplay(lanes.memory, VIEW, seed=0)
    with pytest.raises(NothingToDrawError):
        replay.batch(3)  # Rows 0, 1 and 3; row 1 is followed by row 2, and no other row can take its place.
    assert (len(replay), replay.lost, replay.sampled) == (3, 0, 0)
    lanes.play(1)
    assert sorted(drawn(replay, 3)) == [0, 3, 5]
    assert (len(replay), replay.lost, replay.sampled) == (0, 1, 3)


def test_a_resumed_queue_goes_on_where_the_one_before_was(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(6)
    before, after = (QueueReplay(lanes.memory, VIEW, seed=0) for _ in range(2))
    drawn(before, 4)
    after.restore(before.state())
    lanes.play(3)
    assert drawn(after, 5) == drawn(before, 5) == [4, 5, 7, 8, 9]
    assert after.sampled == before.sampled


def test_the_state_of_another_buffer_is_refused(tmp_path: Path) -> None:
    memory = Lanes(tmp_path).memory
    with pytest.raises(CheckpointError, match="expected the state of a queue, found no 'end'"):
        QueueReplay(memory, VIEW, seed=0).restore(UniformReplay(memory, VIEW, seed=0).state())


def test_another_thread_may_ask_for_the_length_while_batches_are_drawn(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, capacity=5000)
    replay = QueueReplay(lanes.memory, VIEW, seed=0)
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            len(replay)

    with ThreadPoolExecutor() as pool:
        asking = pool.submit(ask)
        try:
            found: list[int] = []
            for _ in range(200):
                lanes.play(10)
                found += drawn(replay, 10)
        finally:
            stop.set()
        asking.result()
    assert len(set(found)) == len(found) == 2000
