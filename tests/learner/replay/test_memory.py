"""The files of a replay as they are opened: by the process that made them, later, and for reading only."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from common.errors import ConfigError, RunDirectoryError
from learner.replay.memory import ReplayMemory
from tests.learner.replay.memories import SCHEMA, make, open_stacked, readable, reopen, rows


def test_cursors_and_items_outlive_the_process_that_wrote_them(tmp_path: Path) -> None:
    _, writer = make(tmp_path)
    writer.append(rows(0, 3), 3, incarnation=7, seq=1)
    writer.append(rows(3, 2), 2, incarnation=8, seq=1)
    writer.append(rows(5, 1), 1, incarnation=7, seq=2)
    memory, again = reopen(tmp_path)
    assert readable(memory) == [0, 1, 2, 3, 4, 5]
    assert (again.last_seq(7), again.last_seq(8), again.last_seq(9)) == (2, 1, 0)


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


def test_room_for_less_than_an_item_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected room for 16 frames, found 15"):
        open_stacked(tmp_path, create=True, frames=15)


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
def test_a_header_that_contradicts_other_files_is_refused(
    tmp_path: Path, changes: dict[str, int], message: str
) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 10), 10, incarnation=7, seq=1)
    writer.append(rows(10, 4), 4, incarnation=7, seq=2)
    for name, value in changes.items():
        setattr(memory.header, name, value)
    for opened in (lambda: reopen(tmp_path), lambda: ReplayMemory.open_saved(tmp_path / "replay")):
        with pytest.raises(RunDirectoryError, match="replay/header: .*" + re.escape(message)):
            opened()


def test_the_origin_of_an_item_is_the_incarnation_that_stored_it(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    assert memory.find_origins(np.array([0])).tolist() == [0]
    for seq, (incarnation, count) in enumerate([(7, 3), (2**64 - 1, 4), (7, 5), (9, 2)], start=1):
        writer.append(rows(memory.committed, count), count, incarnation, seq)
    memory = ReplayMemory.open_saved(tmp_path / "replay")
    origins = memory.find_origins(np.array([13, 3, 6, 7, 11, 12, 14, -1]))
    assert origins.dtype == np.uint64
    assert origins.tolist() == [9, 2**64 - 1, 2**64 - 1, 7, 7, 9, 0, 0]


def test_the_origin_of_an_item_whose_record_is_gone_is_unknown(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    for seq in range(1, 31):
        writer.append(rows(seq - 1, 1), 1, incarnation=7, seq=seq)
    assert memory.find_origins(np.arange(18, 22)).tolist() == [0, 0, 7, 7]
