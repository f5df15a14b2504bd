"""Batches of a replay as a copy has them, and as bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from learner.replay.batch_log import Batch
from learner.replay.copying import ROWS, count_steps, list_batches, open_copy, pack, read_rows, unpack
from learner.replay.writer import ReplayWriter
from tests.learner.replay.memories import LINKED, SCHEMA, make, next_linked, open_linked, rows


def batch(number: int, start: int, n: int, incarnation: int, seq: int) -> Batch:
    return Batch(number, start, n, start + n, incarnation, seq, follows=1, checksum=0)


def extents(batches: list[Batch]) -> list[tuple[int, int, int]]:
    return [(b.start, b.rows, b.seq) for b in batches]


RECORDS = [batch(0, 0, 4, 7, 1), batch(1, 4, 4, 7, 2), batch(2, 8, 4, 8, 1), batch(4, 16, 4, 8, 3)]


def test_batches_are_joined_only_on_request() -> None:
    assert extents([*list_batches(RECORDS[:3], 0, 12)]) == [(0, 4, 1), (4, 4, 2), (8, 4, 1)]
    assert extents([*list_batches(RECORDS[:3], 0, 12, join_rows=100)]) == [(0, 8, 2), (8, 4, 1)]


def test_rows_before_the_begin_and_after_the_end_are_left_out() -> None:
    assert extents([*list_batches(RECORDS[:3], 2, 8)]) == [(2, 2, 1), (4, 4, 2)]


def test_rows_without_a_record_are_those_of_nobody_and_lie_where_they_lay() -> None:
    found = [*list_batches(RECORDS, 0, 20)]
    assert [(b.start, b.rows) for b in found] == [(0, 4), (4, 4), (8, 4), (12, 4), (16, 4)]
    assert found[3].incarnation not in {7, 8}


def test_a_batch_of_an_actor_is_never_split_since_the_actor_may_send_it_again() -> None:
    assert extents([*list_batches([batch(0, 0, 3 * ROWS, 7, 1)], 0, 3 * ROWS)]) == [(0, 3 * ROWS, 1)]


def test_rows_that_were_overwritten_are_not_read(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    for seq in range(1, 5):
        writer.append(rows(4 * seq, 4), 4, incarnation=7, seq=seq)
    assert read_rows(memory, 0, 8) is None
    assert read_rows(memory, memory.first(), 16) is not None


def test_a_copy_gives_the_cursors_of_processes_that_are_gone_to_others(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    copy, _ = make(tmp_path / "copy")
    writer = open_copy(copy, [7])
    writer.copy(rows(0, 4), None, batch(0, 0, 4, 7, 3))
    assert writer.last_seq(7) == 3


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
