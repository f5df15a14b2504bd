from __future__ import annotations

import numpy as np
import pytest

from learner.replay.ring import read_ring, write_ring


@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("rows", range(5))
def test_rows_written_across_the_end_are_read_in_order(start: int, rows: int) -> None:
    ring, written = np.zeros(4, np.int64), np.arange(1, rows + 1)
    write_ring(ring, written, start)
    found = read_ring(ring, start, start + rows)
    np.testing.assert_array_equal(found, written)
    assert not np.shares_memory(found, ring), "it is a copy"
