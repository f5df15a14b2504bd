"""The files of a replay as they are opened: by the process that made them, later, and for reading only."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from common.data import Column, Schema
from common.errors import RunDirectoryError, SchemaMismatchError
from learner.replay.memory import ReplayMemory
from learner.replay.writer import ReplayWriter
from tests.learner.replay.memories import SCHEMA, linked_rows, make, open_linked, readable, reopen, rows


def test_cursors_and_items_outlive_the_process_that_wrote_them(tmp_path: Path) -> None:
    _, writer = make(tmp_path)
    writer.append(rows(0, 3), 3, incarnation=7, seq=1)
    writer.append(rows(3, 2), 2, incarnation=8, seq=1)
    writer.append(rows(5, 1), 1, incarnation=7, seq=2)
    memory, again = reopen(tmp_path)
    assert readable(memory) == [0, 1, 2, 3, 4, 5]
    assert (again.last_seq(7), again.last_seq(8), again.last_seq(9)) == (2, 1, 0)


def test_a_missing_replay_is_an_error_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no readable replay memory"):
        ReplayMemory(tmp_path / "nothing", SCHEMA, 10, create=False)


def test_a_saved_memory_is_opened_as_it_is_for_reading_only(tmp_path: Path) -> None:
    _, writer = make(tmp_path)
    writer.append(rows(0, 10), 10, incarnation=7, seq=1)
    writer.append(rows(10, 4), 4, incarnation=7, seq=2)
    saved = ReplayMemory.open_saved(tmp_path / "replay")
    assert (saved.schema, saved.capacity) == (SCHEMA, 10)
    assert readable(saved) == list(range(4, 14))
    with pytest.raises(TypeError, match="read-only"):
        saved.header.committed = 0
    with pytest.raises(ValueError, match="read-only"):
        saved.columns["n"][0] = 7


def test_a_saved_memory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="replay: no readable replay memory"):
        ReplayMemory.open_saved(tmp_path / "replay")


def test_columns_of_a_structured_space_have_files_of_their_own(tmp_path: Path) -> None:
    columns = (Column("obs/arm/joints", "<f4", (2,)), Column("obs/arm", "|u1"), Column("../outside", "|b1"))
    memory = ReplayMemory(tmp_path / "replay", Schema.of_rows(columns), 10, create=True)
    assert list(memory.columns)[:3] == ["obs/arm/joints", "obs/arm", "../outside"]
    assert all(path.is_file() for path in (tmp_path / "replay").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["replay"]


def test_steps_are_the_rows_that_are_not_final(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True, began=100, steps_began=80)
    assert (memory.committed, memory.steps, len(memory), memory.drawable) == (100, 80, 0, 0)
    ReplayWriter(memory).append(linked_rows(0, 30), 30, incarnation=7, seq=1)
    memory = ReplayMemory.open_saved(tmp_path / "replay")
    assert (memory.committed, memory.steps, len(memory)) == (130, 104, 30)
    assert memory.drawable == 24, "the newest rows of all lanes are final"
    assert (memory.began, memory.steps_began) == (100, 80)
    assert memory.count_steps(100, 116) == 13
    assert memory.count_drawable(100, 116) == 13


def test_each_self_contained_item_is_a_step_that_can_be_drawn(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 7), 7, incarnation=7, seq=1)
    assert (memory.links, memory.steps, memory.drawable) == (None, 7, 7)
    writer.append(rows(7, 7), 7, incarnation=7, seq=2)
    assert (memory.steps, memory.drawable, memory.count_steps(4, 14), memory.count_drawable(4, 14)) == (14, 10, 10, 10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"committed": 10**15}, "committed: expected 0 to 14, found 1000000000000000"),
        ({"committed": -5}, "committed: expected 0 to 14, found -5"),
        ({"oldest": 15, "committed": 14}, "oldest: expected 4 to 14, found 15"),
        ({"oldest": 3}, "oldest: expected 4 to 14, found 3"),
        ({"intact": 5}, "intact: expected 0 to 4, found 5"),
        ({"steps": 15}, "steps: expected 0 to 14, found 15"),
        ({"batches": 1}, "committed: expected 0 to 10, found 14"),
        ({"batches": 1, "committed": 10}, "end of the last cursor: expected 0 to 10, found 14"),
        ({"batches": 3}, "expected the record of batch 2 in the log, found none that is whole"),
        ({"batches": 0}, "committed: expected 0 to 0, found 14"),
    ],
)
def test_a_header_that_contradicts_other_files_is_refused(
    tmp_path: Path, changes: dict[str, int], message: str
) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 10), 10, incarnation=7, seq=1)
    writer.append(rows(10, 4), 4, incarnation=7, seq=2)
    for name, value in changes.items():
        setattr(memory.header, name, value)
    for opened in (lambda: reopen(tmp_path), lambda: ReplayMemory.open_saved(tmp_path / "replay")):
        with pytest.raises(RunDirectoryError, match="replay/header: .*" + re.escape(message)):
            opened()


def test_the_origin_of_an_item_is_the_incarnation_that_stored_it(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    assert memory.find_origins(np.array([0])).tolist() == [0]
    for seq, (incarnation, count) in enumerate([(7, 3), (2**64 - 1, 4), (7, 5), (9, 2)], start=1):
        writer.append(rows(memory.committed, count), count, incarnation, seq)
    memory = ReplayMemory.open_saved(tmp_path / "replay")
    origins = memory.find_origins(np.array([13, 3, 6, 7, 11, 12, 14, -1]))
    assert origins.dtype == np.uint64
    assert origins.tolist() == [9, 2**64 - 1, 2**64 - 1, 7, 7, 9, 0, 0]


def test_the_origin_of_an_item_whose_record_is_gone_is_unknown(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    for seq in range(1, 31):
        writer.append(rows(seq - 1, 1), 1, incarnation=7, seq=seq)
    assert memory.find_origins(np.arange(18, 22)).tolist() == [0, 0, 7, 7]


def test_excluded_rows_are_known_by_their_indices_in_any_shape(tmp_path: Path) -> None:
    memory, _ = make(tmp_path)
    memory.exclude(np.array([5, 3]))
    memory.exclude(np.array([5, 9]))
    assert memory.excluded.tolist() == [3, 5, 9]
    assert memory.is_excluded(np.array([[3, 4], [8, 9]])).tolist() == [[True, False], [False, True]]
    assert [memory.count_excluded(first, 9) for first in (0, 4, 6)] == [2, 1, 0]


def test_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path)
    other = Schema((Column("n", "<i8"), Column("pair", "<f4", (3,))))
    with pytest.raises(SchemaMismatchError, match=r"column 1: .* expects pair <f4 \[2\], .* has pair <f4 \[3\]"):
        ReplayMemory(tmp_path / "replay", other, 10, create=False)


def test_another_capacity_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(SchemaMismatchError, match="expected capacity 11, found 10"):
        ReplayMemory(tmp_path / "replay", SCHEMA, 11, create=False)


@pytest.mark.parametrize("version", [3, 5, "four"])
def test_another_layout_is_refused_by_its_version(tmp_path: Path, version: object) -> None:
    make(tmp_path)
    layout = tmp_path / "replay" / "layout.json"
    layout.write_text(json.dumps({"version": version, "schema": [{"frames": True}]}))
    message = (
        f"replay: expected a replay of layout 4, found layout {re.escape(repr(version))}, which another release wrote"
    )
    with pytest.raises(RunDirectoryError, match=message):
        ReplayMemory.open_saved(tmp_path / "replay")
    with pytest.raises(RunDirectoryError, match=message):
        reopen(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"version": 4}', '{"version":4,"capacity":1,"schema":{"a":1}}'])
def test_a_layout_that_cannot_be_read_is_an_error_with_its_place(tmp_path: Path, text: str) -> None:
    make(tmp_path)
    (tmp_path / "replay" / "layout.json").write_text(text)
    with pytest.raises(RunDirectoryError, match="replay: no readable replay memory"):
        ReplayMemory.open_saved(tmp_path / "replay")
    with pytest.raises(RunDirectoryError, match="replay: no readable replay memory"):
        ReplayMemory(tmp_path / "replay", SCHEMA, 10, create=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("capacity", "9"),
        ("capacity", 0),
        ("slack", -1),
        ("began", 1.5),
        ("steps_began", True),
        ("schema", {"n": "<i8"}),
        ("schema", [{"name": "n", "dtype": "|O", "shape": []}]),
        ("schema", [{"name": "n", "dtype": ",i8", "shape": []}]),
        ("schema", [{"name": "n", "dtype": "<i8", "shape": [-1]}]),
        ("schema", [{"name": 3, "dtype": "<i8", "shape": []}]),
    ],
)
def test_values_of_another_kind_are_refused_where_the_file_is_read(tmp_path: Path, key: str, value: object) -> None:
    make(tmp_path)
    layout = tmp_path / "replay" / "layout.json"
    layout.write_text(json.dumps({**json.loads(layout.read_text()), key: value}))
    with pytest.raises(RunDirectoryError, match=r"no readable replay memory: layout\.json: .*(rows|column|indices)"):
        ReplayMemory.open_saved(tmp_path / "replay")
