"""Files of other layouts: refused, or upgraded where release 0.1 has written them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from common.data import Column, Schema
from common.errors import RunDirectoryError, SchemaMismatchError
from learner.replay.memory import ReplayMemory
from learner.replay.writer import ReplayWriter
from tests.frames import check_stacks
from tests.learner.replay.memories import SCHEMA, make, next_stacked, open_stacked, read_all, readable, reopen, rows


def test_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path)
    other = Schema((Column("n", "<i8"), Column("pair", "<f4", (3,))))
    with pytest.raises(SchemaMismatchError, match=r"column 1: .* expects pair <f4 \[2\], .* has pair <f4 \[3\]"):
        ReplayMemory(tmp_path / "replay", other, 10, create=False)


def test_another_capacity_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(SchemaMismatchError, match="expected capacity 11, found 10"):
        ReplayMemory(tmp_path / "replay", SCHEMA, 11, create=False)


def test_another_room_for_frames_is_refused(tmp_path: Path) -> None:
    open_stacked(tmp_path, create=True, frames=100)
    with pytest.raises(SchemaMismatchError, match="expected frame_capacity 101, found 100"):
        open_stacked(tmp_path, create=False, frames=101)


def test_an_unknown_layout_is_refused_by_its_version(tmp_path: Path) -> None:
    make(tmp_path)
    layout = tmp_path / "replay" / "layout.json"
    layout.write_text(json.dumps({**json.loads(layout.read_text()), "version": 4}))
    with pytest.raises(RunDirectoryError, match="expected layout 2 to 3, found 4"):
        ReplayMemory.open_saved(tmp_path / "replay")


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"version": 3}', '{"version":3,"capacity":1,"schema":{"a":1}}'])
def test_a_layout_that_cannot_be_read_is_an_error_with_its_place(tmp_path: Path, text: str) -> None:
    make(tmp_path)
    (tmp_path / "replay" / "layout.json").write_text(text)
    with pytest.raises(RunDirectoryError, match="replay: no readable replay memory"):
        ReplayMemory.open_saved(tmp_path / "replay")
    with pytest.raises(RunDirectoryError, match="replay: no readable replay memory"):
        ReplayMemory(tmp_path / "replay", SCHEMA, 10, create=False)


def as_layout_2(directory: Path) -> None:
    """Make files what release 0.1 would have written."""
    layout = json.loads((directory / "layout.json").read_text())
    memory = ReplayMemory.open_saved(directory)
    header = np.memmap(directory / "header", "<i8", "r+")
    header[[2, 5, 6]] = memory.committed, 0, 0
    (directory / "batches").unlink()
    (directory / "layout.json").write_text(json.dumps({**layout, "version": 2}))


def test_a_replay_of_release_0_1_is_read_as_it_is(tmp_path: Path) -> None:
    _, writer = make(tmp_path)
    writer.append(rows(0, 10), 10, incarnation=7, seq=1)
    writer.append(rows(10, 4), 4, incarnation=7, seq=2)
    as_layout_2(tmp_path / "replay")
    saved = ReplayMemory.open_saved(tmp_path / "replay")
    assert readable(saved) == list(range(4, 14))
    assert saved.find_origins(np.array([5])).tolist() == [0]
    assert not (tmp_path / "replay" / "batches").exists()


def test_a_replay_of_release_0_1_is_upgraded_when_it_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, writer = make(tmp_path)
    writer.append(rows(0, 10), 10, incarnation=7, seq=1)
    writer.append(rows(10, 4), 4, incarnation=7, seq=2)
    as_layout_2(tmp_path / "replay")
    (tmp_path / "replay" / "batches").write_bytes(b"of an upgrade that was killed")
    memory, writer = reopen(tmp_path)
    assert "upgraded from layout 2; of its 10 items it is not known which actors made them" in caplog.text
    assert writer.last_seq(7) == 2
    writer.append(rows(14, 2), 2, incarnation=8, seq=1)
    memory, writer = reopen(tmp_path)
    assert readable(memory) == list(range(6, 16))
    assert memory.find_origins(np.arange(12, 16)).tolist() == [0, 0, 8, 8]
    old, new = memory.log.read_all()
    assert memory.compute_checksum(old) != old.checksum, "its items 4 and 5 have been overwritten"
    assert memory.compute_checksum(new) == new.checksum


def test_a_batch_that_release_0_1_had_not_finished_is_finished_by_the_upgrade(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 4), 4, incarnation=7, seq=1)
    as_layout_2(tmp_path / "replay")
    memory.journal[0] = memory.cursors[memory.cursors["incarnation"] == 7][0]
    memory.cursors["seq"][:] = 0  # Killed before the cursor and the end were written.
    memory.header.committed = 0
    memory, writer = reopen(tmp_path)
    assert readable(memory) == [0, 1, 2, 3]
    assert writer.last_seq(7) == 1


def test_the_upgrade_of_a_replay_with_frames_knows_which_frames_its_rows_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = open_stacked(tmp_path, create=True, capacity=40, frames=64)
    writer = ReplayWriter(memory)
    for seq in range(1, 40):
        writer.append(next_stacked(memory, 3), 3, incarnation=1, seq=seq)
    as_layout_2(tmp_path / "replay")
    monkeypatch.setattr("learner.replay.layout.ROWS", 8)
    memory = open_stacked(tmp_path, create=False, capacity=40, frames=64)
    made = memory.log.read_all()
    assert len(made) > 3
    assert all(one.is_followed_by(other) for one, other in pairwise(made))
    assert (made[0].start, made[-1].end) == (memory.first(), memory.committed)
    assert made[-1].frames_end == memory.frames_stored
    assert all(memory.compute_checksum(found) == found.checksum for found in made)
    check_stacks(read_all(memory))
