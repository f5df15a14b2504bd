"""After a power cut: any page of any file may be as it was at any moment since the last checkpoint."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.errors import RunDirectoryError
from common.shared.mapped import hold_until_exit
from learner.replay import memory as replay_memory
from learner.replay.memory import ReplayMemory
from learner.replay.recovery import Watermark, find_whole_bounds, make_whole
from learner.replay.writer import ReplayWriter
from tests.conftest import PATIENCE
from tests.learner.replay.memories import (
    KilledError,
    check_linked,
    killed_after,
    linked_rows,
    open_linked,
)

CAPACITY, PAGE = 600, 4096
OTHER_BOOT = 12345


def opened(directory: Path, *, create: bool = False, checked: bool = True, slack: int = 0) -> ReplayMemory:
    return open_linked(directory, create=create, capacity=CAPACITY, checked=checked, slack=slack)


def store(memory: ReplayMemory, batches: int, rng: random.Random) -> None:
    writer = ReplayWriter(memory)
    for _ in range(batches):
        rows, incarnation = rng.randrange(1, 30), rng.randrange(1, 6)
        items = linked_rows(memory.committed, rows)
        writer.append(items, rows, incarnation, writer.last_seq(incarnation) + 1)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / "replay").iterdir()}


def cut(directory: Path, moments: list[dict[str, bytes]], rng: random.Random) -> None:
    """Leave each page as it was at one of these moments."""
    for name, newest in moments[-1].items():
        pages = range(0, len(newest), PAGE)
        mixed = b"".join(rng.choice(moments)[name][at : at + PAGE] for at in pages)
        (directory / "replay" / name).write_bytes(mixed)
    np.memmap(directory / "replay" / "header", "<i8", "r+")[6] = OTHER_BOOT


def recovered(directory: Path, watermark: Watermark | None, slack: int = 0) -> ReplayMemory:
    make_whole(opened(directory, checked=False, slack=slack), lambda: watermark)
    return opened(directory)


def check_whole(memory: ReplayMemory) -> None:
    """Every row that can be drawn is the row that was stored with its number and linked as then; steps are counted."""
    check_linked(memory)
    assert memory.steps == (~linked_rows(0, memory.committed)["final"]).sum()


def true_cursors(seed: int, batches: int, end: int) -> dict[int, int]:
    """The highest seq of each incarnation in the batches that ``store`` makes, up to an item."""
    rng, seqs, committed = random.Random(seed), dict[int, int](), 0
    for _ in range(batches):
        rows, incarnation = rng.randrange(1, 30), rng.randrange(1, 6)
        committed += rows
        if committed <= end:
            seqs[incarnation] = seqs.get(incarnation, 0) + 1
    return seqs


@pytest.mark.parametrize("before", [0, 1, 12, 100])
@pytest.mark.parametrize("after", [3, 30, 200])
def test_after_a_power_cut_every_row_is_whole_and_linked_and_cursors_fit_wherever_pages_are_from(
    tmp_path: Path, before: int, after: int
) -> None:
    for seed in range(4):
        directory, rng, torn = tmp_path / str(seed), random.Random(seed), random.Random(seed)
        memory = opened(directory, create=True)
        store(memory, before, rng)
        watermark = Watermark.from_json(Watermark.of(memory).to_json())
        moments = [files(directory)]
        for _ in range(3):
            store(memory, after // 3, rng)
            moments.append(files(directory))
        cut(directory, moments, torn)
        memory = recovered(directory, watermark if before else None)
        check_whole(memory)
        assert memory.committed >= watermark.committed
        writer = ReplayWriter(memory)
        expected = true_cursors(seed, before + after, memory.committed)
        assert {n: writer.last_seq(n) for n in range(1, 6)} == {n: expected.get(n, 0) for n in range(1, 6)}
        store(memory, 60, random.Random(seed))  # It can be gone on with.
        check_whole(opened(directory))


def test_a_cursor_that_is_lost_with_all_rows_of_its_process_is_too_low_and_stores_no_row_twice(tmp_path: Path) -> None:
    """The log's record is lost as well, so the process sends again rows that the replay no longer has."""
    memory = opened(tmp_path, create=True)
    writer = ReplayWriter(memory)
    for incarnation, seq in ((1, 1), (2, 1), (1, 2), (1, 3), (2, 2), (2, 3)):
        writer.append(linked_rows(memory.committed, 10), 10, incarnation, seq)
    older = 1, 1, 10, 0  # The page of the table is from a moment after the first batch.
    memory.cursors[memory.cursors["incarnation"] == 1] = older
    memory.log.records[1:4] = 0
    memory.header.place = OTHER_BOOT
    memory = recovered(tmp_path, None)
    assert (memory.first(), memory.committed) == (40, 60)
    writer = ReplayWriter(memory)
    assert (writer.last_seq(1), writer.last_seq(2)) == (1, 3)
    assert 1 not in memory.find_origins(np.arange(60))[memory.first() :]
    writer.append(linked_rows(60, 10), 10, 1, 2)
    check_whole(opened(tmp_path))


def test_what_a_checkpoint_has_synced_and_nothing_has_overwritten_is_kept(tmp_path: Path) -> None:
    rng = random.Random(0)
    memory = opened(tmp_path, create=True)
    store(memory, 20, rng)
    watermark, synced = Watermark.of(memory), files(tmp_path)
    store(memory, 10, rng)
    cut(tmp_path, [synced, files(tmp_path)], random.Random(1))
    memory = recovered(tmp_path, watermark)
    assert (memory.first(), memory.committed >= watermark.committed) == (0, True)


def test_after_a_power_cut_that_took_nothing_nothing_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = opened(tmp_path, create=True)
    store(memory, 20, random.Random(0))
    before = memory.committed
    cut(tmp_path, [files(tmp_path)], random.Random(0))
    with caplog.at_level(logging.INFO):
        memory = recovered(tmp_path, None)
    assert (memory.first(), memory.committed) == (0, before)
    assert f"the disk was mounted again, or a write to it failed; all {before} rows are whole" in caplog.messages[-1]
    assert "WARNING" not in {record.levelname for record in caplog.records}


def test_a_replay_that_was_closed_is_whole_in_any_boot_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = opened(tmp_path, create=True)
    store(memory, 100, random.Random(0))
    before = memory.first(), memory.committed
    memory.close()
    closed = memory.header.place
    assert memory.is_settled()
    memory = recovered(tmp_path, None)
    assert (memory.first(), memory.committed) == before
    assert memory.header.place not in (closed, 0)
    assert not caplog.messages


def test_after_a_failed_sync_all_rows_are_compared_although_the_replay_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = opened(tmp_path, create=True)
    store(memory, 100, random.Random(0))

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(replay_memory, "sync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            memory.sync()
    memory.close()  # Linux reports a lost write once: this sync succeeds.
    end = memory.committed
    memory.columns["n"][(end - 1) % CAPACITY] += 1  # As if the write of the newest row was lost.
    assert recovered(tmp_path, None).committed < end


def copied_while_written(source: ReplayMemory, to: Path) -> None:
    """Copy header, cursors and log at one moment, and all other files after more batches, as ``cp -r`` does."""
    first = {name: (source.directory / name).read_bytes() for name in ("header", "cursors", "batches")}
    store(source, 20, random.Random(1))
    shutil.copytree(source.directory, to / "replay")
    for name, content in first.items():
        (to / "replay" / name).write_bytes(content)


@pytest.mark.parametrize("closed", [False, True])
def test_of_files_that_were_copied_while_a_learner_wrote_them_only_whole_rows_stay(
    tmp_path: Path, closed: bool
) -> None:
    memory = opened(tmp_path, create=True)
    store(memory, 100, random.Random(0))
    if closed:
        memory.close()
    copied_while_written(memory, tmp_path / "copy")
    first, end = find_whole_bounds(ReplayMemory.open_saved(tmp_path / "copy" / "replay"))
    copy = recovered(tmp_path / "copy", None)
    assert 0 < len(copy) < CAPACITY, "rows that were overwritten during the copy are given up, all others stay"
    assert (first, end) == (copy.first(), copy.committed)
    check_whole(copy)


def test_an_older_copy_in_the_place_of_the_files_is_compared(tmp_path: Path) -> None:
    memory = opened(tmp_path, create=True)
    store(memory, 100, random.Random(0))
    copied_while_written(memory, tmp_path / "copy")
    for file in (tmp_path / "copy" / "replay").iterdir():  # As ``cp -r`` does: the inodes stay.
        (tmp_path / "replay" / file.name).write_bytes(file.read_bytes())
    check_whole(recovered(tmp_path, None))


def test_an_older_copy_that_rsync_puts_back_is_compared(tmp_path: Path) -> None:
    memory = opened(tmp_path, create=True)
    store(memory, 100, random.Random(0))
    copied_while_written(memory, tmp_path / "copy")
    for file in (tmp_path / "copy" / "replay").iterdir():
        if file.name != "layout.json":  # Size and time are those of the copy, so rsync leaves it as it is.
            file.rename(tmp_path / "replay" / file.name)
    check_whole(recovered(tmp_path, None))


def test_a_directory_that_was_renamed_is_not_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = opened(tmp_path / "before", create=True)
    store(memory, 100, random.Random(0))
    (tmp_path / "before").rename(tmp_path / "after")
    memory = recovered(tmp_path / "after", None)
    check_whole(memory)
    assert not caplog.messages


def test_a_watermark_holds_for_a_copy_whose_batches_are_numbered_anew(tmp_path: Path) -> None:
    memory = opened(tmp_path, create=True)
    store(memory, 100, random.Random(0))
    watermark = replace(Watermark.of(memory), batches=10_000)
    store(memory, 5, random.Random(1))
    before = memory.first(), memory.committed
    memory.header.place = OTHER_BOOT
    memory = recovered(tmp_path, watermark)
    assert (memory.first() < before[0] + 30, memory.committed) == (True, before[1])
    check_whole(memory)


@pytest.mark.parametrize("later", [10, 300], ids=["the copy could still be there", "all of its slots were overwritten"])
def test_an_older_copy_keeps_its_rows_although_a_checkpoint_knows_of_later_rows(tmp_path: Path, later: int) -> None:
    memory = opened(tmp_path, create=True)
    store(memory, 30, random.Random(0))
    older = memory.first(), memory.committed
    shutil.copytree(tmp_path / "replay", tmp_path / "copy" / "replay")
    store(memory, later, random.Random(1))
    copy = recovered(tmp_path / "copy", Watermark.of(memory))
    assert (copy.first(), copy.committed) == older
    check_whole(copy)
    writer = ReplayWriter(copy)
    assert {n: writer.last_seq(n) for n in range(1, 6)} == true_cursors(0, 30, older[1])


def test_the_log_tells_how_many_rows_are_lost_and_where(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = opened(tmp_path, create=True)
    writer = ReplayWriter(memory)
    for seq in range(1, 11):
        writer.append(linked_rows(memory.committed, 10), 10, 1, seq)
    memory.columns["n"][73] = -1
    memory.header.place = OTHER_BOOT
    memory = recovered(tmp_path, None)
    check_whole(memory)
    assert (memory.first(), memory.committed) == (0, 70)
    assert "70 rows are whole and stay, from index 0 on" in caplog.messages[-1]
    assert "The run has lost 0 rows before them" in caplog.messages[-1]
    assert "at least 30 rows from index 70 on" in caplog.messages[-1]


def test_without_whole_rows_the_replay_begins_empty_at_the_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = opened(tmp_path, create=True)
    store(memory, 10, random.Random(0))
    watermark = Watermark.of(memory)
    memory.columns["n"][:] = -1
    memory.header.place = OTHER_BOOT
    memory = recovered(tmp_path, watermark)
    assert (len(memory), memory.committed) == (0, watermark.committed)
    assert "0 rows are whole" in caplog.messages[-1]
    assert sorted(ReplayWriter(memory).last_seq(cursor[0]) for cursor in watermark.cursors) == sorted(
        cursor[1] for cursor in watermark.cursors
    )
    store(memory, 5, random.Random(0))
    check_whole(opened(tmp_path))


@pytest.mark.parametrize("name", ["header", "cursors"])
def test_recovery_corrects_an_older_header_or_older_cursors_by_the_log(tmp_path: Path, name: str) -> None:
    memory = opened(tmp_path, create=True)
    rng = random.Random(0)
    store(memory, 10, rng)
    older = files(tmp_path)[name]
    store(memory, 10, rng)
    before = memory.committed
    (tmp_path / "replay" / name).write_bytes(older)
    with pytest.raises(RunDirectoryError, match="cursor: expected"):
        opened(tmp_path)
    memory = recovered(tmp_path, None)
    assert memory.committed == before
    check_whole(memory)
    writer = ReplayWriter(memory)
    assert {n: writer.last_seq(n) for n in range(1, 6)} == true_cursors(0, 20, before)


def test_a_run_in_turns_can_be_rolled_back_to_its_checkpoint_after_a_power_cut(tmp_path: Path) -> None:
    memory = opened(tmp_path, create=True, slack=300)
    writer = ReplayWriter(memory)

    def append(batches: int) -> None:
        for _ in range(batches):
            writer.append(linked_rows(memory.committed, 3), 3, 1, writer.last_seq(1) + 1)

    append(250)
    mark, watermark, moments = writer.mark(), Watermark.of(memory), [files(tmp_path)]
    append(60)
    moments.append(files(tmp_path))
    cut(tmp_path, moments, random.Random(3))
    memory = recovered(tmp_path, watermark, slack=300)
    writer = ReplayWriter(memory)
    assert writer.roll_back(mark, 1)
    check_whole(memory)
    assert (memory.first(), memory.committed) == (mark["oldest"], mark["end"])
    append(30)
    memory = opened(tmp_path)
    check_whole(memory)
    assert memory.committed == mark["end"] + 90


def test_a_recovery_that_is_killed_anywhere_comes_to_the_same_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    memory = opened(tmp_path / "cut", create=True)
    store(memory, 30, rng)
    watermark, moments = Watermark.of(memory), [files(tmp_path / "cut")]
    store(memory, 30, rng)
    cut(tmp_path / "cut", [*moments, files(tmp_path / "cut")], random.Random(7))
    shutil.copytree(tmp_path / "cut", tmp_path / "alone")
    recovered(tmp_path / "alone", watermark).header.place = 0  # It names the files, so it is different for each copy.
    expected = files(tmp_path / "alone")
    for writes in range(9):
        again = tmp_path / str(writes)
        shutil.copytree(tmp_path / "cut", again)
        with killed_after(writes, monkeypatch), pytest.raises(KilledError):
            make_whole(opened(again, checked=False), lambda: watermark)
        recovered(again, watermark).header.place = 0
        assert files(again) == expected, writes


def test_nothing_is_recovered_beside_an_ingest_that_still_writes(tmp_path: Path) -> None:
    memory = opened(tmp_path, create=True)
    memory.header.place = OTHER_BOOT
    hold_until_exit(tmp_path)
    with pytest.raises(RunDirectoryError, match="the ingest process of a learner that was killed still holds it"):
        make_whole(opened(tmp_path, checked=False), lambda: None)


def test_of_files_that_are_only_read_the_bounds_and_links_of_the_whole_rows_are_found(tmp_path: Path) -> None:
    memory = opened(tmp_path, create=True)
    writer = ReplayWriter(memory)
    for seq in range(1, 11):
        writer.append(linked_rows(memory.committed, 10), 10, 1, seq)
    assert find_whole_bounds(ReplayMemory.open_saved(tmp_path / "replay")) == (0, 100)
    memory.columns["n"][73] = -1
    memory.header.place = OTHER_BOOT
    assert memory.links is not None
    memory.links.next[:] = 5
    saved = ReplayMemory.open_saved(tmp_path / "replay")
    assert find_whole_bounds(saved) == (0, 70)
    assert saved.links is not None
    assert saved.links.next[:70].tolist() == [3] * 67 + [0] * 3
    assert memory.links.next[0] == 5, "the files stay as they are"


def test_a_watermark_taken_while_a_writer_goes_on_is_that_of_one_moment(tmp_path: Path) -> None:
    memory, ended = opened(tmp_path, create=True), threading.Event()

    def write() -> None:
        rng, theirs = random.Random(0), opened(tmp_path)
        while not ended.is_set():
            store(theirs, 10, rng)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            found = Watermark.of(memory)
            assert found.batches == sum(seq for _, seq, _ in found.cursors)
            assert found.committed == max((end for _, _, end in found.cursors), default=0)
            assert found.steps == (~linked_rows(0, found.committed)["final"]).sum()
    finally:
        ended.set()
        writer.join(PATIENCE)
