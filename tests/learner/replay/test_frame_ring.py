"""A replay that keeps each frame once, against plain lists; its rows and frames run out at different times."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.data import Items
from common.errors import ConfigError, SchemaMismatchError
from common.process.clocks import Deadline
from common.wire.frames import Packer
from learner.replay.memory import ReplayMemory
from learner.replay.reader import ReplayReader
from learner.replay.uniform import UniformReplay
from learner.replay.writer import ReplayWriter
from tests.conftest import PATIENCE, ROOT, wait_for
from tests.frames import SCHEMA, check_stacks, pictures, stacked_items

CAPACITY, FRAMES, BATCH = 512, 384, 16
"""The writing process brings about 1.2 frames an item, so frames run out first."""


def open_memory(directory: Path, *, create: bool, capacity: int = CAPACITY, frames: int = FRAMES) -> ReplayMemory:
    return ReplayMemory(directory / "replay", SCHEMA, capacity, create=create, frame_capacity=frames)


def kept(memory: ReplayMemory) -> Items:
    """Everything that can be drawn, in order."""
    indices = np.arange(memory.first(), memory.committed)
    _, items = ReplayReader(memory).take(lambda size: {"index": indices}, len(indices))
    np.testing.assert_array_equal(items["n"], indices)
    return items


def batch(memory: ReplayMemory, size: int) -> Items:
    return stacked_items(np.arange(memory.committed, memory.committed + size))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=60), st.sampled_from([64, 100, 1000]))
def test_what_is_kept_is_what_was_stored_through_many_rounds_of_rows_and_frames(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, bool]], frames: int
) -> None:
    memory = open_memory(tmp_path_factory.mktemp("replay"), create=True, capacity=30, frames=frames)
    writer = ReplayWriter(memory)
    for seq, (size, came_packed) in enumerate(batches, start=1):
        items, before = batch(memory, size), memory.committed
        if came_packed:
            writer.append_packed(Packer(SCHEMA).pack(items, size), incarnation=1, seq=seq)
        else:
            writer.append(items, size, incarnation=1, seq=seq)
        assert memory.first() <= before, "a batch leaves itself"
        check_stacks(kept(memory))
    if frames == 1000:
        assert len(memory) == min(memory.committed, 30)


@given(st.lists(st.integers(1, 6), max_size=60))
def test_no_batch_is_given_up_before_its_frames_are_overwritten(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    memory = open_memory(tmp_path_factory.mktemp("replay"), create=True, capacity=1000, frames=96)
    writer = ReplayWriter(memory)
    starts: list[tuple[int, int]] = []
    frames_end = 0
    for seq, size in enumerate(sizes, start=1):
        packed = Packer(SCHEMA).pack(batch(memory, size), size)
        starts.append((memory.committed, frames_end))
        frames_end += len(packed.frames)
        writer.append_packed(packed, incarnation=1, seq=seq)
        assert memory.first() == next(row for row, frame in starts if frame >= frames_end - 96)


def test_one_step_after_another_is_stored_with_one_frame_each(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, create=True)
    writer = ReplayWriter(memory)
    for seq in range(1, 201):
        writer.append(batch(memory, 1), 1, incarnation=1, seq=seq)
    assert memory.header.frames_end == 199 + 199 // 7 + 2, "all pictures up to the newest, each once"
    check_stacks(kept(memory))
    assert len(memory) == 200


def test_a_picture_that_keeps_coming_back_holds_nothing_up(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, create=True, capacity=40, frames=32)
    writer = ReplayWriter(memory)
    for n in range(1, 200):
        stacks = pictures(np.array([[0, n, 0, n]]))
        writer.append({"obs": stacks, "n": np.array([n]), "next_obs": stacks}, 1, incarnation=1, seq=n)
        indices = np.arange(memory.first(), memory.committed)
        _, items = ReplayReader(memory).take(lambda size, drawn=indices: {"index": drawn}, len(indices))  # type: ignore[misc]
        np.testing.assert_array_equal(items["obs"], pictures(np.stack([[0, n, 0, n] for n in items["n"]])))
    assert len(memory) > 10


def test_running_out_of_room_for_frames_is_said_once_with_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = open_memory(tmp_path, create=True, capacity=100, frames=64)
    writer = ReplayWriter(memory)
    for seq in range(1, 100):
        writer.append(batch(memory, 2), 2, incarnation=1, seq=seq)
    (message,) = caplog.messages
    assert "of 100 items only: replay.frames_per_item should be above 1.1" in message


def test_a_batch_larger_than_the_replay_is_a_programming_error(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, create=True, capacity=100, frames=64)
    assert memory.max_rows == 4
    with pytest.raises(AssertionError, match="5 rows in a batch of 4 at most"):
        ReplayWriter(memory).append(batch(memory, 5), 5, incarnation=1, seq=1)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("rounds", [1, 5, 40])
@pytest.mark.parametrize("fences", [1, 2, 3])
def test_a_writer_killed_between_any_two_steps_leaves_each_batch_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, fences: int
) -> None:
    memory = open_memory(tmp_path, create=True, frames=256)
    writer = ReplayWriter(memory)
    for seq in range(1, rounds + 1):
        writer.append(batch(memory, BATCH), BATCH, incarnation=7, seq=seq)
    passed = 0

    def fence() -> None:
        nonlocal passed
        passed += 1
        if passed == fences:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("learner.replay.memory.fence", fence)
        with pytest.raises(KilledError):
            writer.append(batch(memory, BATCH), BATCH, incarnation=7, seq=rounds + 1)
    memory = open_memory(tmp_path, create=False, frames=256)
    again = ReplayWriter(memory)
    assert again.last_seq(7) == rounds + (fences == 3)
    assert memory.committed == again.last_seq(7) * BATCH
    for seq in range(again.last_seq(7) + 1, rounds + 10):
        check_stacks(kept(memory))
        again.append(batch(memory, BATCH), BATCH, incarnation=7, seq=seq)
    check_stacks(kept(memory))


def test_frames_of_a_batch_cut_off_after_its_journal_count_with_it(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, create=True)
    writer = ReplayWriter(memory)
    writer.append(batch(memory, 3), 3, incarnation=7, seq=1)
    before = memory.header.frames_end
    writer.append(batch(memory, 3), 3, incarnation=7, seq=2)
    memory.cursors["seq"][0] = 1  # Killed before the cursor and both ends were written.
    memory.header.frames_end, memory.header.committed = before, 3
    memory = open_memory(tmp_path, create=False)
    again = ReplayWriter(memory)
    assert (again.last_seq(7), memory.committed) == (2, 6)
    again.append(batch(memory, 3), 3, incarnation=7, seq=3)
    check_stacks(kept(memory))


@contextmanager
def writing(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process writes into the replay; it has ended when the context has."""
    command = [sys.executable, "-m", "tests.learner.replay.frame_writer", str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as writer:
        yield writer


def test_no_torn_stack_is_ever_drawn_while_another_process_overwrites_frames(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, create=True)
    with writing(tmp_path):
        wait_for(lambda: len(memory) > 200, "the first rows")
        replay, before = UniformReplay(memory, seed=0), memory.committed
        draws, deadline = 0, Deadline(PATIENCE)
        while draws < 500 or memory.committed < before + 20 * CAPACITY:  # Frames are overwritten meanwhile.
            assert not deadline.passed(), f"{draws} draws, {memory.committed - before} rows"
            draws += 1
            check_stacks(replay.batch(256))


def test_a_writer_killed_at_any_moment_leaves_a_replay_that_opens_well(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, create=True)
    for goal in (1000, 2000, 3000):
        with writing(tmp_path) as writer:
            wait_for(lambda goal=goal: memory.committed > goal, "rows")  # type: ignore[misc]
            writer.kill()
        recovered = ReplayWriter(open_memory(tmp_path, create=False))
        assert recovered.last_seq(1) * BATCH == memory.committed
        check_stacks(kept(memory))


def test_another_room_for_frames_is_refused(tmp_path: Path) -> None:
    open_memory(tmp_path, create=True, frames=100)
    with pytest.raises(SchemaMismatchError, match="expected frame_capacity 101, found 100"):
        open_memory(tmp_path, create=False, frames=101)


def test_room_for_less_than_an_item_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected room for 16 frames, found 15"):
        open_memory(tmp_path, create=True, frames=15)
