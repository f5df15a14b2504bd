"""Rings of rows, and replays that keep each frame once; their rows and frames run out at different times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.process.clocks import Deadline
from common.wire.frames import Packer
from learner.replay.reader import ReplayReader
from learner.replay.ring import read_ring, write_ring
from learner.replay.uniform import UniformReplay
from learner.replay.writer import ReplayWriter
from tests.conftest import PATIENCE, wait_for
from tests.frames import SCHEMA, check_stacks, pictures
from tests.learner.replay.memories import CAPACITY, next_stacked, open_stacked, read_all, writing


@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("rows", range(5))
def test_rows_written_across_the_end_are_read_in_order(start: int, rows: int) -> None:
    ring, written = np.zeros(4, np.int64), np.arange(1, rows + 1)
    write_ring(ring, written, start)
    np.testing.assert_array_equal(read_ring(ring, start, start + rows), written)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=60), st.sampled_from([64, 100, 1000]))
def test_stored_stacks_are_read_back_through_many_rounds_of_rows_and_frames(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, bool]], frames: int
) -> None:
    memory = open_stacked(tmp_path_factory.mktemp("replay"), create=True, capacity=30, frames=frames)
    writer = ReplayWriter(memory)
    for seq, (size, came_packed) in enumerate(batches, start=1):
        items, before = next_stacked(memory, size), memory.committed
        if came_packed:
            writer.append_packed(Packer(SCHEMA).pack(items, size), incarnation=1, seq=seq)
        else:
            writer.append(items, size, incarnation=1, seq=seq)
        assert memory.first() <= before, "a batch leaves itself"
        check_stacks(read_all(memory))
    if frames == 1000:
        assert len(memory) == min(memory.committed, 30)


@given(st.lists(st.integers(1, 6), max_size=60))
def test_no_batch_is_given_up_before_its_frames_are_overwritten(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    memory = open_stacked(tmp_path_factory.mktemp("replay"), create=True, capacity=1000, frames=96)
    writer = ReplayWriter(memory)
    starts: list[tuple[int, int]] = []
    frames_end = 0
    for seq, size in enumerate(sizes, start=1):
        packed = Packer(SCHEMA).pack(next_stacked(memory, size), size)
        starts.append((memory.committed, frames_end))
        frames_end += len(packed.frames)
        writer.append_packed(packed, incarnation=1, seq=seq)
        assert memory.first() == next(row for row, frame in starts if frame >= frames_end - 96)


def test_one_step_after_another_is_stored_with_one_frame_each(tmp_path: Path) -> None:
    memory = open_stacked(tmp_path, create=True)
    writer = ReplayWriter(memory)
    for seq in range(1, 201):
        writer.append(next_stacked(memory, 1), 1, incarnation=1, seq=seq)
    assert memory.frames_stored == 199 + 199 // 7 + 2, "all pictures up to the newest, each once"
    check_stacks(read_all(memory))
    assert len(memory) == 200


def test_a_picture_that_keeps_coming_back_does_not_keep_old_frames_in_use(tmp_path: Path) -> None:
    memory = open_stacked(tmp_path, create=True, capacity=40, frames=32)
    writer = ReplayWriter(memory)
    for n in range(1, 200):
        stacks = pictures(np.array([[0, n, 0, n]]))
        writer.append({"obs": stacks, "n": np.array([n]), "next_obs": stacks}, 1, incarnation=1, seq=n)
        indices = np.arange(memory.first(), memory.committed)
        items = ReplayReader(memory).read(indices)
        assert items is not None
        np.testing.assert_array_equal(items["obs"], pictures(np.stack([[0, n, 0, n] for n in items["n"]])))
    assert len(memory) > 10


def test_running_out_of_room_for_frames_is_logged_once_with_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = open_stacked(tmp_path, create=True, capacity=100, frames=64)
    writer = ReplayWriter(memory)
    for seq in range(1, 100):
        writer.append(next_stacked(memory, 2), 2, incarnation=1, seq=seq)
    (message,) = caplog.messages
    assert "of 100 items only: replay.frames_per_item should be above 1.1" in message


def test_no_torn_stack_is_ever_drawn_while_another_process_overwrites_frames(tmp_path: Path) -> None:
    memory = open_stacked(tmp_path, create=True)
    with writing(tmp_path, "stacked"):
        wait_for(lambda: len(memory) > 200, "the first rows")
        replay, before = UniformReplay(memory, seed=0), memory.committed
        draws, deadline = 0, Deadline(PATIENCE)
        while draws < 500 or memory.committed < before + 20 * CAPACITY:  # Frames are overwritten meanwhile.
            assert not deadline.passed(), f"{draws} draws, {memory.committed - before} rows"
            draws += 1
            check_stacks(replay.batch(256))
