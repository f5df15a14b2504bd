from __future__ import annotations

from pathlib import Path

import pytest

from common.data import PRIORITY, Column, Schema
from common.errors import RunDirectoryError, SchemaMismatchError
from learner.datasets.saved_replay import CHUNK, SavedReplay
from tests.learner.datasets.saved import NUMBERED, parts_of, save_replay


def test_all_items_are_read_in_order_in_chunks(tmp_path: Path) -> None:
    count = 2 * CHUNK + 7
    save_replay(tmp_path, count)
    replay = SavedReplay(tmp_path)
    chunks = [items["n"].tolist() for items in replay.items(parts_of(NUMBERED))]
    assert len(replay) == count
    assert [len(chunk) for chunk in chunks] == [CHUNK, CHUNK, 7]
    assert [n for chunk in chunks for n in chunk] == list(range(count))


def test_items_that_were_overwritten_are_not_read(tmp_path: Path) -> None:
    save_replay(tmp_path, 500, capacity=200)
    (items,) = SavedReplay(tmp_path).items(parts_of(NUMBERED))
    assert items["n"].tolist() == list(range(300, 500))


def test_first_priorities_are_left_out_for_a_run_whose_items_have_none(tmp_path: Path) -> None:
    rated = NUMBERED.plus(PRIORITY)
    save_replay(tmp_path, 10, rated)
    for schema in (NUMBERED, rated):
        (items,) = SavedReplay(tmp_path).items(parts_of(schema))
        assert [*items] == [column.name for column in schema.columns]


def test_another_column_than_the_runs_is_named(tmp_path: Path) -> None:
    save_replay(tmp_path, 10)
    other = Schema((NUMBERED.columns[0], Column("x", "<f8")))
    with pytest.raises(SchemaMismatchError, match=rf"this run expects x <f8 .*dataset {tmp_path} has x <f4"):
        next(SavedReplay(tmp_path).items(parts_of(other)))


def test_a_directory_without_a_replay_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError):
        SavedReplay(tmp_path)
