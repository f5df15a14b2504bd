from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from common.data import Column, Items, Schema
from common.domain import Domain
from common.errors import DatasetError
from common.parts import Parts
from learner.datasets.loading import load_dataset
from learner.replay.memory import ReplayMemory
from learner.replay.ring import read_ring
from learner.replay.value_rules import ValueRules
from tests.learner.datasets.saved import parts_of

SCHEMA = Schema((Column("n", "<i8"), Column.of("x", np.float32, domain=Domain.between(-1, 1, np.float32))))


class Chunks:
    """A dataset of self-contained items."""

    name = "data/any"

    def __init__(self, *lengths: int, x: float = 0.0) -> None:
        self._lengths, self._x = lengths, x

    def __len__(self) -> int:
        return sum(self._lengths)

    def check(self, parts: Parts) -> None:
        assert parts.schema == SCHEMA

    def items(self, parts: Parts) -> Iterator[tuple[int, Items]]:
        self._first = 0
        for length in self._lengths:
            n = np.arange(self._first, self._first + length)
            yield 0, {"n": n, "x": np.where(n == 7, np.float32(self._x), np.float32(0))}
            self._first += length

    def name_row(self, row: int) -> str:
        return f"row {self._first + row}"


@pytest.fixture
def memory(tmp_path: Path) -> ReplayMemory:
    return ReplayMemory(tmp_path / "replay", SCHEMA, 50, create=True)


def load(dataset: Chunks, memory: ReplayMemory, *, whole: bool = False, kept: bool = False) -> list[int]:
    """The numbers of the items in the replay afterwards, oldest first."""
    rules = ValueRules(SCHEMA, {}, {"x": "count"} if kept else {"x": "refuse"})
    load_dataset(dataset, parts_of(SCHEMA), memory, rules, whole=whole)
    return [int(n) for n in read_ring(memory.columns["n"], memory.first(), memory.committed)]


def test_chunks_of_any_size_are_stored_in_order(memory: ReplayMemory) -> None:
    assert load(Chunks(20, 3, 8), memory) == list(range(31))


def test_short_episodes_are_stored_together_so_that_the_log_has_room_for_all_batches(memory: ReplayMemory) -> None:
    assert load(Chunks(*[1] * 40), memory) == list(range(40))
    assert [batch.rows for batch in memory.log.read_all()] == [40]


def test_of_a_dataset_larger_than_the_replay_the_newest_items_stay(memory: ReplayMemory) -> None:
    assert load(Chunks(40, 40), memory) == list(range(30, 80))


def test_a_dataset_larger_than_the_replay_is_refused_where_all_of_it_is_asked_for(memory: ReplayMemory) -> None:
    with pytest.raises(DatasetError, match=r"at most 50 rows, found more in its 80; raise replay\.capacity"):
        load(Chunks(40, 40), memory, whole=True)


def test_a_dataset_without_items_is_refused(memory: ReplayMemory) -> None:
    with pytest.raises(DatasetError, match="dataset data/any: expected rows to learn from, found none"):
        load(Chunks(), memory)


def test_a_value_that_is_refused_is_named_with_the_dataset_and_the_item(memory: ReplayMemory) -> None:
    with pytest.raises(DatasetError, match=r"dataset data/any: column 'x': .* found 3.* in row 7"):
        load(Chunks(5, 20, x=3.0), memory)


def test_values_that_are_kept_outside_their_bounds_are_counted_in_a_warning(
    memory: ReplayMemory, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(load(Chunks(20, x=3.0), memory, kept=True)) == 20
    assert caplog.messages == ["dataset data/any: column 'x': 1 values are outside the bounds of its space"]
