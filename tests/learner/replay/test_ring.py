from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.shared.mapped import map_file
from learner.replay.checksum import compute_checksum
from learner.replay.ring import fault_in, read_ring, write_ring, write_rings


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
