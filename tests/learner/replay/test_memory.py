from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.data import Column, Items, Schema
from common.errors import RunDirectoryError, SchemaMismatchError
from learner.replay.memory import N_CURSORS, ReplayMemory
from learner.replay.writer import CursorsFullError, ReplayWriter

SCHEMA = Schema((Column("n", "<i8"), Column("pair", "<f4", (2,))))


def rows(start: int, count: int) -> Items:
    n = np.arange(start, start + count)
    return {"n": n, "pair": np.stack([n, n], axis=1).astype(np.float32)}


def make(directory: Path, capacity: int = 10) -> tuple[ReplayMemory, ReplayWriter]:
    memory = ReplayMemory(directory / "replay", SCHEMA, capacity, create=True)
    return memory, ReplayWriter(memory)


def reopen(directory: Path, capacity: int = 10) -> tuple[ReplayMemory, ReplayWriter]:
    memory = ReplayMemory(directory / "replay", SCHEMA, capacity, create=False)
    return memory, ReplayWriter(memory)


def readable(memory: ReplayMemory) -> list[int]:
    slots = np.arange(memory.first(), memory.committed) % memory.capacity
    return [int(n) for n in memory.columns["n"][slots]]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 10), max_size=30))
def test_the_newest_items_up_to_the_capacity_are_kept_in_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    memory, writer = make(tmp_path_factory.mktemp("replay"))
    total = 0
    for seq, size in enumerate(sizes, start=1):
        writer.append(rows(total, size), size, incarnation=1, seq=seq)
        total += size
    assert memory.committed == total
    assert len(memory) == min(total, 10)
    assert readable(memory) == list(range(max(0, total - 10), total))


def test_cursors_and_items_outlive_the_process_that_wrote_them(tmp_path: Path) -> None:
    _, writer = make(tmp_path)
    writer.append(rows(0, 3), 3, incarnation=7, seq=1)
    writer.append(rows(3, 2), 2, incarnation=8, seq=1)
    writer.append(rows(5, 1), 1, incarnation=7, seq=2)
    memory, again = reopen(tmp_path)
    assert readable(memory) == [0, 1, 2, 3, 4, 5]
    assert (again.last_seq(7), again.last_seq(8), again.last_seq(9)) == (2, 1, 0)


def test_a_batch_cut_off_before_its_journal_counts_for_nothing(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 4), 4, incarnation=7, seq=1)
    memory.columns["n"][4:6] = -1  # Killed after it had begun to write three rows.
    memory, again = reopen(tmp_path)
    assert readable(memory) == [0, 1, 2, 3]
    assert again.last_seq(7) == 1
    again.append(rows(4, 3), 3, incarnation=7, seq=2)
    assert readable(memory) == [0, 1, 2, 3, 4, 5, 6]


def test_rows_that_a_killed_writer_had_begun_to_overwrite_are_not_read(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 10), 10, incarnation=7, seq=1)
    memory.header.oldest = 3  # Killed after it had given up three rows and begun to overwrite them.
    memory.columns["n"][0:2] = -1
    memory, again = reopen(tmp_path)
    assert readable(memory) == list(range(3, 10))
    again.append(rows(10, 1), 1, incarnation=7, seq=2)
    assert readable(memory) == list(range(3, 11))


def test_a_batch_cut_off_after_its_journal_counts_whole(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 4), 4, incarnation=7, seq=1)
    memory.cursors["seq"][:] = 0  # Killed before the cursor and the watermark were written.
    memory.header.committed = 0
    memory, again = reopen(tmp_path)
    assert readable(memory) == [0, 1, 2, 3]
    assert again.last_seq(7) == 1


def test_the_cursor_unused_for_longest_makes_room_once_its_items_are_overwritten(tmp_path: Path) -> None:
    _, writer = make(tmp_path)
    for incarnation in range(1, N_CURSORS + 2):
        writer.append(rows(0, 1), 1, incarnation, seq=1)
    assert writer.last_seq(1) == 0
    assert writer.last_seq(2) == 1
    assert writer.last_seq(N_CURSORS + 1) == 1


def test_no_batch_is_stored_twice_for_want_of_cursors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.replay.memory.N_CURSORS", 20)
    memory, gone = ReplayMemory(tmp_path / "replay", SCHEMA, 1000, create=True), set[int]()
    writer = ReplayWriter(memory, lambda incarnation: incarnation in gone)
    for incarnation in range(1, 21):
        writer.require_cursor(incarnation)
        writer.append(rows(incarnation, 1), 1, incarnation, seq=1)
    full = "cursors for 20 actor processes"
    with pytest.raises(CursorsFullError, match=full):
        writer.require_cursor(21)
    with pytest.raises(CursorsFullError, match=full):
        writer.append(rows(0, 1), 1, 21, seq=1)
    assert (memory.committed, writer.last_seq(1)) == (20, 1), "nothing was stored and nothing forgotten"
    writer.require_cursor(1)
    gone |= {5, 9}
    writer.append(rows(0, 1), 1, 21, seq=1)
    again = ReplayWriter(memory, lambda incarnation: incarnation in gone)
    assert [again.last_seq(incarnation) for incarnation in (1, 5, 9, 21)] == [1, 0, 1, 1]


def test_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path)
    other = Schema((Column("n", "<i8"), Column("pair", "<f4", (3,))))
    with pytest.raises(SchemaMismatchError, match=r"column 1: .* expects pair <f4 \[2\], .* has pair <f4 \[3\]"):
        ReplayMemory(tmp_path / "replay", other, 10, create=False)


def test_another_capacity_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(SchemaMismatchError, match="expected capacity 11, found 10"):
        ReplayMemory(tmp_path / "replay", SCHEMA, 11, create=False)


def test_a_missing_replay_is_an_error_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no readable replay memory"):
        ReplayMemory(tmp_path / "nothing", SCHEMA, 10, create=False)


def test_a_saved_memory_is_opened_as_it_is_for_reading_only(tmp_path: Path) -> None:
    _, writer = make(tmp_path)
    writer.append(rows(0, 10), 10, incarnation=7, seq=1)
    writer.append(rows(10, 4), 4, incarnation=7, seq=2)
    saved = ReplayMemory.open_saved(tmp_path / "replay")
    assert (saved.schema, saved.capacity) == (SCHEMA, 10)
    assert readable(saved) == list(range(4, 14))
    with pytest.raises(TypeError, match="read-only"):
        saved.header.committed = 0
    with pytest.raises(ValueError, match="read-only"):
        saved.columns["n"][0] = 7


def test_a_saved_memory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="replay: no readable replay memory"):
        ReplayMemory.open_saved(tmp_path / "replay")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"committed": 10**15}, "committed: expected 0 to 14, found 1000000000000000"),
        ({"committed": -5}, "committed: expected 0 to 14, found -5"),
        ({"oldest": 15, "committed": 14}, "oldest: expected 4 to 14, found 15"),
        ({"oldest": 3}, "oldest: expected 4 to 14, found 3"),
        ({"intact": 5}, "intact: expected 0 to 4, found 5"),
        ({"batches": 1}, "committed: expected 0 to 10, found 14"),
        ({"batches": 1, "committed": 10}, "end of the last cursor: expected 0 to 10, found 14"),
        ({"batches": 3}, "expected the record of batch 2 in the log, found none that is whole"),
        ({"batches": 0}, "committed: expected 0 to 0, found 14"),
    ],
)
def test_a_header_that_cannot_be_is_refused(tmp_path: Path, changes: dict[str, int], message: str) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 10), 10, incarnation=7, seq=1)
    writer.append(rows(10, 4), 4, incarnation=7, seq=2)
    for name, value in changes.items():
        setattr(memory.header, name, value)
    for opened in (lambda: reopen(tmp_path), lambda: ReplayMemory.open_saved(tmp_path / "replay")):
        with pytest.raises(RunDirectoryError, match="replay/header: .*" + re.escape(message)):
            opened()
