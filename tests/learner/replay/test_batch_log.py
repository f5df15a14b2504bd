"""Which batch an item came with, and what is known of replays that were written before there was a log."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from common.errors import RunDirectoryError
from learner.replay.batch_log import Batch, BatchLog
from learner.replay.memory import ReplayMemory
from learner.replay.reader import ReplayReader
from learner.replay.writer import ReplayWriter
from learner.shared.mapped import map_file
from tests.frames import SCHEMA as STACKED
from tests.frames import check_stacks, stacked_items
from tests.learner.replay.test_memory import SCHEMA, make, readable, reopen, rows


def batch(number: int) -> Batch:
    return Batch(number, 10 * number, 10, 0, 0, 0, incarnation=7, seq=number + 1, checksum=99)


def open_log(directory: Path, length: int = 4) -> BatchLog:
    return BatchLog(map_file(directory / "batches", 64 * length, create=not (directory / "batches").exists()))


def test_the_newest_records_are_read_back_by_number(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(6):
        log.write(batch(number))
    log = open_log(tmp_path)
    assert [log.read(number) for number in range(-1, 7)] == [None, None, None, *map(batch, range(2, 6)), None]
    assert log.whole() == [batch(number) for number in range(2, 6)]
    assert log.newest(6)["start"].tolist() == [20, 30, 40, 50]


@pytest.mark.parametrize("byte", [0, 9, 20, 40, 57, 63])
def test_a_record_that_is_not_whole_does_not_count(tmp_path: Path, byte: int) -> None:
    log = open_log(tmp_path)
    log.write(batch(1))
    log.write(batch(2))
    log.records.view(np.uint8)[64 + byte] ^= 1
    assert log.read(1) is None
    assert log.whole() == [batch(2)]


def test_only_the_records_that_are_to_be_kept_stay(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(4):
        log.write(batch(number))
    log.keep(1, 3)
    assert log.whole() == [batch(1), batch(2)]


def test_the_origin_of_an_item_is_the_incarnation_that_stored_it(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    assert memory.origins(np.array([0])).tolist() == [0]
    for seq, (incarnation, count) in enumerate([(7, 3), (2**64 - 1, 4), (7, 5), (9, 2)], start=1):
        writer.append(rows(memory.committed, count), count, incarnation, seq)
    memory = ReplayMemory.open_saved(tmp_path / "replay")
    origins = memory.origins(np.array([13, 3, 6, 7, 11, 12, 14, -1]))
    assert origins.dtype == np.uint64
    assert origins.tolist() == [9, 2**64 - 1, 2**64 - 1, 7, 7, 9, 0, 0]


def test_the_origin_of_an_item_whose_record_is_gone_is_unknown(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    for seq in range(1, 31):
        writer.append(rows(seq - 1, 1), 1, incarnation=7, seq=seq)
    assert memory.origins(np.arange(18, 22)).tolist() == [0, 0, 7, 7]


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
    assert saved.origins(np.array([5])).tolist() == [0]
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
    assert memory.origins(np.arange(12, 16)).tolist() == [0, 0, 8, 8]
    assert [memory.checksum(found) == found.checksum for found in memory.log.whole()] == [False, True], "4, 5 are gone"


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
    def opened(*, create: bool) -> ReplayMemory:
        return ReplayMemory(tmp_path / "replay", STACKED, 40, create=create, frame_capacity=64)

    memory = opened(create=True)
    writer = ReplayWriter(memory)
    for seq in range(1, 40):
        writer.append(stacked_items(np.arange(memory.committed, memory.committed + 3)), 3, incarnation=1, seq=seq)
    as_layout_2(tmp_path / "replay")
    monkeypatch.setattr("learner.replay.upgrade.ROWS", 8)
    memory = opened(create=False)
    made = memory.log.whole()
    assert len(made) > 3
    assert all(one.is_followed_by(other) for one, other in pairwise(made))
    assert (made[0].start, made[-1].end) == (memory.first(), memory.committed)
    assert made[-1].frames_end == memory.header.frames_end
    assert all(memory.checksum(found) == found.checksum for found in made)
    index = np.arange(memory.first(), memory.committed)
    check_stacks(ReplayReader(memory).take(lambda _: {"index": index}, len(index))[1])


def test_an_unknown_layout_is_refused_by_its_version(tmp_path: Path) -> None:
    make(tmp_path)
    layout = tmp_path / "replay" / "layout.json"
    layout.write_text(json.dumps({**json.loads(layout.read_text()), "version": 4}))
    with pytest.raises(RunDirectoryError, match="expected layout 2 to 3, found 4"):
        ReplayMemory.open_saved(tmp_path / "replay")


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"version": 3}', '{"version":3,"capacity":1,"schema":{"a":1}}'])
def test_a_layout_that_says_nothing_is_an_error_with_its_place(tmp_path: Path, text: str) -> None:
    make(tmp_path)
    (tmp_path / "replay" / "layout.json").write_text(text)
    with pytest.raises(RunDirectoryError, match="replay: no readable replay memory"):
        ReplayMemory.open_saved(tmp_path / "replay")
    with pytest.raises(RunDirectoryError, match="replay: no readable replay memory"):
        ReplayMemory(tmp_path / "replay", SCHEMA, 10, create=False)
