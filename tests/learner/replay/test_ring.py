from __future__ import annotations

import os
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from common.data import Column
from common.shared.mapped import map_file
from learner.replay.ring import (
    BLOCK_BYTES,
    add_to_checksum,
    compute_checksum,
    fault_in,
    map_ring,
    read_ring,
    write_ring,
    write_rings,
)


@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("rows", range(5))
def test_rows_written_across_the_end_are_read_in_order(start: int, rows: int) -> None:
    ring, written = np.zeros(4, np.int64), np.arange(1, rows + 1)
    write_ring(ring, written, start)
    found = read_ring(ring, start, start + rows)
    np.testing.assert_array_equal(found, written)
    assert not np.shares_memory(found, ring), "it is a copy"


@pytest.mark.parametrize(("begin", "end"), [(0, 10), (5000, 9000), (8000, 12_000), (11_999, 13_000)])
def test_pages_that_are_prepared_keep_what_they_hold(tmp_path: Path, begin: int, end: int) -> None:
    file = map_file(tmp_path / "file", 12_000, create=True)
    file[:] = bytes(range(240)) * 50
    fault_in(file, begin, end)
    assert file[:] == bytes(range(240)) * 50


def test_rings_of_several_columns_are_written_across_their_ends_with_one_checksum() -> None:
    for start in range(6):
        rings = [np.zeros(5, np.int32), np.zeros((5, 2), np.float32)]
        columns = [np.arange(3), np.arange(6.0).reshape(3, 2)[:, ::-1]]
        checksum = write_rings(rings, columns, start)
        stored = [read_ring(ring, start, start + 3) for ring in rings]
        for ring, column in zip(stored, columns, strict=True):
            np.testing.assert_array_equal(ring, column)
        assert checksum == compute_checksum(stored)


def test_large_columns_go_to_their_files_which_the_mappings_show_also_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = 5000  # A call may write fewer bytes than it is given.
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset, write=os.pwrite: write(file, data[:few], offset))
    paths, rings = [tmp_path / name for name in ("large", "small")], []
    for path, column in zip(paths, (Column("large", "<i4", (50, 60)), Column("small", "<i8")), strict=True):
        rings.append(map_ring(partial(map_file, create=True), path, column, 5))
    rings.append(np.zeros(5, np.uint32))
    with paths[0].open("r+b") as large, paths[1].open("r+b") as small:
        for start in range(6):
            pictures = np.arange(start, start + 9000).reshape(3, 60, 50).swapaxes(1, 2)
            columns = [pictures, np.arange(3), np.arange(3)]
            checksum = write_rings(rings, columns, start, [large.fileno(), small.fileno()])
            stored = [read_ring(ring, start, start + 3) for ring in rings]
            for found, written in zip(stored, columns, strict=True):
                np.testing.assert_array_equal(found, written)
            assert checksum == compute_checksum(stored)


PICTURES = np.random.default_rng(0).integers(0, 256, (20, 84, 84), np.uint8)
PAGE = 4096


def changed(pictures: np.ndarray, at: int, by: int) -> np.ndarray:
    copy = pictures.copy()
    copy.reshape(-1)[at] ^= by
    return copy


class TestChecksum:
    def test_few_bytes_have_their_crc_32(self) -> None:
        few = np.arange(10, dtype=np.float32)
        assert compute_checksum([few]) == zlib.crc32(few.tobytes())

    def test_arrays_follow_one_another(self) -> None:
        small = np.arange(5)
        assert compute_checksum([PICTURES, small]) == add_to_checksum(compute_checksum([PICTURES]), small)
        assert compute_checksum([PICTURES, small]) != compute_checksum([small, PICTURES])

    def test_only_the_bytes_count_and_not_where_they_lie(self) -> None:
        elsewhere = np.zeros(PICTURES.nbytes + 1, np.uint8)
        elsewhere[1:] = PICTURES.reshape(-1)  # An address that is no multiple of eight.
        assert compute_checksum([elsewhere[1:]]) == compute_checksum([PICTURES])

    @pytest.mark.parametrize("by", [1, 128, 255])
    def test_any_changed_byte_changes_it(self, by: int) -> None:
        checksum = compute_checksum([PICTURES])
        last = PICTURES.nbytes - 1
        for at in (0, 7, 8, BLOCK_BYTES - 1, BLOCK_BYTES, last - last % BLOCK_BYTES, last):
            assert compute_checksum([changed(PICTURES, at, by)]) != checksum

    def test_moved_words_and_swapped_blocks_change_it(self) -> None:
        words = PICTURES.reshape(-1).view(np.uint64)[: 16 * PAGE // 8]
        neighbours, blocks = words.copy(), words.reshape(16, -1)[[1, 0, *range(2, 16)]].copy()
        neighbours[[10, 11]] = words[[11, 10]]
        assert len({compute_checksum([each]) for each in (words, neighbours, blocks)}) == 3

    def test_pages_of_an_earlier_batch_are_seen_where_only_a_ball_has_moved(self) -> None:
        rng = np.random.default_rng(1)
        old, new = np.zeros((2, 100, 84, 84), np.uint8)
        for pictures in (old, new):
            for picture, (y, x) in zip(pictures, rng.integers(0, 82, (100, 2)), strict=True):
                picture[y : y + 2, x : x + 2] = 236
        checksum = compute_checksum([new])
        for page in range(0, new.nbytes - PAGE, PAGE):
            torn = new.copy()
            torn.reshape(-1)[page : page + PAGE] = old.reshape(-1)[page : page + PAGE]
            assert (compute_checksum([torn]) != checksum) == bool((torn != new).any())
