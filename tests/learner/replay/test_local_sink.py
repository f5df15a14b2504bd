"""Items that the learner's own process stores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.errors import RefusedError, SchemaMismatchError
from learner.replay.local_sink import LocalSink
from learner.replay.memory import ReplayMemory
from learner.replay.value_rules import ValueRules
from tests.learner.replay.memories import check_linked, linked_rows, make, open_linked, readable, rows


def sink_of(memory: ReplayMemory) -> LocalSink:
    return LocalSink(memory, ValueRules(memory.schema, {}, {}))


def test_items_are_stored_in_order_and_a_later_sink_goes_on_after_them(tmp_path: Path) -> None:
    memory, _ = make(tmp_path)
    sink = sink_of(memory)
    sink.push(rows(0, 3))
    sink.push(rows(3, 1))
    sink_of(memory).push(rows(4, 2))
    assert readable(memory) == [0, 1, 2, 3, 4, 5]
    assert len(set(memory.find_origins(np.arange(6)).tolist())) == 1, "all of one incarnation"


def test_other_columns_and_values_that_are_refused_store_nothing(tmp_path: Path) -> None:
    memory, _ = make(tmp_path)
    sink, items = sink_of(memory), rows(0, 2)
    with pytest.raises(SchemaMismatchError):
        sink.push({"n": items["n"]})
    items["pair"][1, 0] = np.nan
    with pytest.raises(RefusedError, match="column 'pair': expected finite values, found nan in row 1"):
        sink.push(items)
    assert memory.committed == 0


def test_items_stored_since_a_mark_are_forgotten_and_others_stored_in_their_place(tmp_path: Path) -> None:
    memory, _ = make(tmp_path)
    sink = sink_of(memory)
    sink.push(rows(0, 3))
    mark = sink.mark()
    sink.push(rows(70, 2))
    sink = sink_of(memory)  # Of another life.
    assert sink.roll_back(mark)
    assert readable(memory) == [0, 1, 2]
    sink.push(rows(3, 2))
    assert readable(memory) == [0, 1, 2, 3, 4]


def test_rows_stored_after_a_roll_back_continue_the_rows_before_it(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True)
    sink = sink_of(memory)
    sink.push(linked_rows(0, 20))
    mark = sink.mark()
    for row in range(20, 29):
        sink.push(linked_rows(row, 1))
    assert sink.roll_back(mark)
    check_linked(memory)
    for row in range(20, 29):
        sink.push(linked_rows(row, 1))
    check_linked(memory)


def test_a_push_without_rows_stores_no_batch(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True)
    sink = sink_of(memory)
    assert sink.takes(1)
    sink.push(linked_rows(0, 0))
    sink.push(linked_rows(0, 3))
    assert (memory.committed, int(memory.header.batches)) == (3, 1)


def test_lanes_of_another_incarnation_are_other_lanes(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True)
    sink_of(memory).push(linked_rows(0, 3))
    LocalSink(memory, ValueRules(memory.schema, {}, {}), incarnation=2).push(linked_rows(3, 3))
    assert memory.drawable == 0
