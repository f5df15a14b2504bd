"""Rows as bytes, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from learner.replay.copying import list_batches, read_rows
from learner.replay.writer import ReplayWriter
from learner.storage.segments import count_steps, pack, unpack
from tests.learner.replay.memories import LINKED, SCHEMA, make, next_linked, open_linked, rows


def test_batches_come_back_with_their_rows_and_links(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True)
    writer = ReplayWriter(memory)
    for seq in range(1, 6):
        writer.append(next_linked(memory, 8), 8, incarnation=7, seq=seq, follows=seq != 3)
    found = read_rows(memory, 0, 40)
    assert found is not None
    items, previous = found
    assert previous is not None
    came = list(unpack(LINKED, pack(LINKED, found, [*list_batches(memory.log.read_all(), 0, 40)])))
    assert [(b.start, b.rows, b.incarnation, b.seq, b.follows) for _, b in came] == [
        (8 * i, 8, 7, i + 1, int(i != 2)) for i in range(5)
    ]
    for (each, before), batch in came:
        assert before is not None
        for name, column in each.items():
            np.testing.assert_array_equal(column, items[name][batch.start : batch.end])
        np.testing.assert_array_equal(before, previous[batch.start : batch.end])
    assert count_steps(found, 40) == memory.steps


def test_items_have_no_links(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 4), 4, incarnation=7, seq=1)
    found = read_rows(memory, 0, 4)
    assert found is not None
    (((items, previous), batch),) = unpack(SCHEMA, pack(SCHEMA, found, [*list_batches(memory.log.read_all(), 0, 4)]))
    assert (batch.rows, previous) == (4, None)
    np.testing.assert_array_equal(items["pair"], rows(0, 4)["pair"])


def test_bytes_that_were_cut_off_are_refused(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 4), 4, incarnation=7, seq=1)
    found = read_rows(memory, 0, 4)
    assert found is not None
    content = pack(SCHEMA, found, [*list_batches(memory.log.read_all(), 0, 4)])
    for end in (0, len(content) // 2, len(content) - 1):
        with pytest.raises(ValueError, match=r"."):
            list(unpack(SCHEMA, content[:end]))
