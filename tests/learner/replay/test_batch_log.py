"""Records of batches, whole and torn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.shared.mapped import map_file
from learner.replay.batch_log import FEW_RECORDS, MAX_RECORDS, Batch, BatchLog, choose_length


def batch(number: int) -> Batch:
    return Batch(number, 10 * number, 10, 9 * number, incarnation=7, seq=number + 1, follows=1, checksum=99)


def open_log(directory: Path, length: int = 4) -> BatchLog:
    return BatchLog(map_file(directory / "batches", 64 * length, create=not (directory / "batches").exists()))


def test_the_newest_records_are_read_back_by_number(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(6):
        log.write(batch(number))
    log = open_log(tmp_path)
    assert [log.read(number) for number in range(-1, 7)] == [None, None, None, *map(batch, range(2, 6)), None]
    assert log.read_all() == [batch(number) for number in range(2, 6)]
    assert log.copy_newest(6)["start"].tolist() == [20, 30, 40, 50]


@pytest.mark.parametrize("byte", [0, 9, 20, 40, 57, 63])
def test_a_torn_record_is_not_read(tmp_path: Path, byte: int) -> None:
    log = open_log(tmp_path)
    log.write(batch(1))
    log.write(batch(2))
    log.records.view(np.uint8)[64 + byte] ^= 1
    assert log.read(1) is None
    assert log.read_all() == [batch(2)]


def test_keep_removes_all_other_records(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(4):
        log.write(batch(number))
    log.keep(1, 3)
    assert log.read_all() == [batch(1), batch(2)]


@pytest.mark.parametrize(
    ("n_slots", "single_rows", "expected"),
    [
        (10, False, 10),
        (FEW_RECORDS + 1, False, FEW_RECORDS),
        (FEW_RECORDS + 1, True, FEW_RECORDS + 1),
        (1_000_000, False, 250_000),
        (1_000_000, True, 1_000_000),
        (10**8, False, MAX_RECORDS),
        (10**8, True, MAX_RECORDS),
    ],
)
def test_the_log_has_room_for_batches_of_several_rows_or_of_one(
    n_slots: int, *, single_rows: bool, expected: int
) -> None:
    assert choose_length(n_slots, single_rows=single_rows) == expected


def test_batches_are_found_by_their_rows_and_by_their_sender(tmp_path: Path) -> None:
    log = open_log(tmp_path, 8)
    for n in range(12):  # The first four are overwritten.
        log.write(Batch(n, 10 * n, 10, 10 * (n + 1), 7 + n % 2, n // 2 + 1, 1, 0))
    assert [log.find_number(start, 12) for start in (0, 40, 41, 110, 111)] == [4, 4, 5, 11, 12]
    assert [log.find_seq(7, end, newest=6) for end in (40, 50, 69, 70, 120)] == [0, 3, 3, 4, 6]
    assert [log.find_seq(99, end, newest=2) for end in (40, 50)] == [0, 2], "its records are older than those there"
    assert log.find_seq(100, 50, newest=0) == 0, "it has stored nothing"


def test_all_batches_end_before_the_first_record_of_a_log_that_is_not_full(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.write(batch(0))
    assert [log.find_seq(7, end, newest=1) for end in (0, 10)] == [0, 1]
