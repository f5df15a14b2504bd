from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.data import PRIORITY, Column, Items, Schema
from common.errors import RunDirectoryError, SchemaMismatchError
from learner.datasets import saved_replay
from learner.datasets.loading import load_dataset
from learner.datasets.saved_replay import CHUNK, SavedReplay
from learner.replay.memory import ReplayMemory
from learner.replay.value_rules import ValueRules
from tests.learner.datasets.saved import NUMBERED, parts_of, save_batches, save_replay
from tests.learner.replay.memories import check_links
from tests.parts import assert_linked, counting_schema, expected_rows

COUNTING = counting_schema()


def test_all_items_are_read_in_order_in_chunks(tmp_path: Path) -> None:
    count = CHUNK + 7
    save_replay(tmp_path, count)
    replay = SavedReplay(tmp_path)
    chunks = [(group, items["n"].tolist()) for group, items in replay.items(parts_of(NUMBERED))]
    assert len(replay) == count
    assert [(group, len(chunk)) for group, chunk in chunks] == [(0, CHUNK), (0, 7)]
    assert [n for _, chunk in chunks for n in chunk] == list(range(count))


def test_items_that_were_overwritten_are_not_read(tmp_path: Path) -> None:
    save_replay(tmp_path, 500, capacity=200)
    ((_, items),) = SavedReplay(tmp_path).items(parts_of(NUMBERED))
    assert items["n"].tolist() == list(range(300, 500))


def test_first_priorities_are_left_out_for_a_run_whose_items_have_none(tmp_path: Path) -> None:
    rated = NUMBERED.plus(PRIORITY)
    save_replay(tmp_path, 10, rated)
    for schema in (NUMBERED, rated):
        ((_, items),) = SavedReplay(tmp_path).items(parts_of(schema))
        assert [*items] == [column.name for column in schema.columns]


def test_another_column_than_the_runs_is_named(tmp_path: Path) -> None:
    save_replay(tmp_path, 10)
    other = Schema((NUMBERED.columns[0], Column("x", "<f8")))
    with pytest.raises(SchemaMismatchError, match=rf"this run expects x <f8 .*dataset {tmp_path} has x <f4"):
        next(SavedReplay(tmp_path).items(parts_of(other)))


def test_a_directory_without_a_replay_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError):
        SavedReplay(tmp_path)


def interleaved(tags: range, steps: int, rows: int) -> list[tuple[int, Items]]:
    """Batches of actor processes with one environment each, which store so many rows in turn."""
    played = {tag: expected_rows(tag, steps) for tag in tags}
    length = max(len(each["final"]) for each in played.values())
    parts = [(tag, at) for at in range(0, length, rows) for tag in tags]
    return [(tag + 1, {name: column[at : at + rows] for name, column in played[tag].items()}) for tag, at in parts]


def loaded(run: Path, to: Path) -> tuple[ReplayMemory, Items]:
    """The earlier replay in another one."""
    dataset = SavedReplay(run)
    memory = ReplayMemory(to, COUNTING, len(dataset), create=True)
    load_dataset(dataset, parts_of(COUNTING), memory, ValueRules(COUNTING, {}), whole=True)
    return memory, {name: column[: memory.committed] for name, column in memory.columns.items()}


def test_rows_are_linked_as_they_were(tmp_path: Path) -> None:
    earlier = save_batches(tmp_path / "run", COUNTING, 1000, interleaved(range(3), steps=40, rows=4))
    memory, rows = loaded(tmp_path / "run", tmp_path / "replay")
    assert memory.links is not None
    assert_linked(rows, memory.links.previous[: memory.committed])
    check_links(memory)
    assert (memory.steps, memory.drawable) == (earlier.steps, earlier.drawable)


def test_rows_of_more_lanes_than_a_row_can_name_are_linked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_replay, "MAX_LANES", 2)
    earlier = save_batches(tmp_path / "run", COUNTING, 1000, interleaved(range(5), steps=20, rows=4))
    memory, rows = loaded(tmp_path / "run", tmp_path / "replay")
    assert memory.links is not None
    assert_linked(rows, memory.links.previous[: memory.committed])
    assert (memory.steps, memory.drawable) == (earlier.steps, earlier.drawable)


def test_an_episode_that_was_lost_does_not_run_into_the_next(tmp_path: Path) -> None:
    begun, next_one = expected_rows(0, 3), expected_rows(1, 3)
    save_batches(tmp_path / "run", COUNTING, 100, [(1, begun), (1, next_one)])
    memory, rows = loaded(tmp_path / "run", tmp_path / "replay")
    assert memory.links is not None
    assert memory.links.previous[:6].tolist() == [0, 1, 1, 0, 1, 1]
    assert memory.drawable == 4
    np.testing.assert_array_equal(rows["obs"], np.concatenate([begun["obs"], next_one["obs"]]))


def test_rows_whose_past_was_overwritten_begin_a_chain(tmp_path: Path) -> None:
    save_batches(tmp_path / "run", COUNTING, 50, interleaved(range(2), steps=60, rows=10))
    memory, rows = loaded(tmp_path / "run", tmp_path / "replay")
    assert memory.links is not None
    assert len(rows["obs"]) == 50
    assert_linked(rows, memory.links.previous[:50])
