from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actor.proxy import ReplayBufferProxy
from common.config.run_config import PushConfig
from common.data import NO_MODEL, Column, Items, ModelVersion, Schema
from common.errors import SchemaMismatchError
from common.wire.frames import BufferedItems

SCHEMA = Schema((Column("n", "<i8"), Column("pair", "<f4", (2,))))


def rows(*numbers: int) -> Items:
    n = np.array(numbers, np.int64)
    return {"n": n, "pair": np.stack([n, -n], axis=1).astype(np.float32)}


class Batches:
    """Keeps what it is sent, as it was when it was sent."""

    def __init__(self) -> None:
        self.numbers: list[list[int]] = []
        self.behaviours: list[ModelVersion] = []

    def send(self, batch: BufferedItems, behaviour: ModelVersion) -> None:
        items = batch.items(SCHEMA)
        numbers = items["n"]
        assert SCHEMA.count(items) == batch.rows
        np.testing.assert_array_equal(items["pair"], np.stack([numbers, -numbers], axis=1))
        self.numbers.append(numbers.tolist())
        self.behaviours.append(behaviour)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make(n_buffer: int, flush_seconds: float = 60.0) -> tuple[ReplayBufferProxy, Batches, Clock]:
    sink, clock = Batches(), Clock()
    config = PushConfig(n_buffer=n_buffer, flush_seconds=flush_seconds)
    return ReplayBufferProxy(SCHEMA, config, sink, clock), sink, clock


@given(st.integers(1, 7), st.lists(st.integers(0, 20), max_size=10))
def test_batches_hold_exactly_n_buffer_items_in_order_however_they_are_pushed(n_buffer: int, sizes: list[int]) -> None:
    proxy, sink, _ = make(n_buffer)
    pushed = 0
    for size in sizes:
        proxy.push(rows(*range(pushed, pushed + size)))
        pushed += size
    assert [len(numbers) for numbers in sink.numbers] == [n_buffer] * (pushed // n_buffer)
    proxy.flush()
    assert [n for numbers in sink.numbers for n in numbers] == list(range(pushed))


def test_a_push_larger_than_a_batch_is_split() -> None:
    proxy, sink, _ = make(3)
    proxy.push(rows(0))
    proxy.push(rows(*range(1, 8)))
    assert sink.numbers == [[0, 1, 2], [3, 4, 5]]


def test_nothing_is_handed_over_twice_and_flushing_nothing_sends_nothing() -> None:
    proxy, sink, _ = make(2)
    proxy.flush()
    proxy.push(rows(0, 1, 2))
    proxy.flush()
    proxy.flush()
    assert sink.numbers == [[0, 1], [2]]


def test_a_batch_carries_the_version_of_the_model_that_chose_its_first_action() -> None:
    proxy, sink, _ = make(3)
    older, newer, newest = ModelVersion(1, 5), ModelVersion(1, 9), ModelVersion(2, 0)
    proxy.push(rows(0))
    proxy.version = older
    proxy.push(rows(1, 2))
    proxy.push(rows(3, 4))
    proxy.version = newer
    proxy.push(rows(5, 6, 7, 8, 9))
    proxy.version = newest
    proxy.flush()
    assert sink.behaviours == [NO_MODEL, older, newer, newer]


def test_a_batch_older_than_flush_seconds_goes_with_the_next_item() -> None:
    proxy, sink, clock = make(100, flush_seconds=0.5)
    proxy.push(rows(0))
    clock.now = 0.4
    proxy.push(rows(1))
    assert sink.numbers == []
    clock.now = 0.5
    assert sink.numbers == []
    proxy.push(rows(2))
    assert sink.numbers == [[0, 1, 2]]


def test_the_age_of_a_batch_counts_from_its_first_item() -> None:
    proxy, sink, clock = make(100, flush_seconds=0.5)
    for now, number in ((10.0, 0), (10.6, 1), (20.0, 2), (20.4, 3), (20.6, 4)):
        clock.now = now
        proxy.push(rows(number))
    assert sink.numbers == [[0, 1], [2, 3, 4]]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (rows(1) | {"n": np.zeros(1, np.int32)}, r"column 'n': expected <i8 \[1, .*found <i4 \[1\]"),
        (rows(1) | {"pair": np.zeros((1, 3), np.float32)}, r"column 'pair': expected <f4 \[1, .*found <f4 \[1, 3\]"),
        ({"n": np.zeros(1, np.int64)}, r"expected columns \['n', 'pair'\], found \['n'\]"),
    ],
)
def test_items_of_another_schema_are_refused_by_column_and_not_taken(items: Items, message: str) -> None:
    proxy, sink, _ = make(2)
    proxy.push(rows(0))
    with pytest.raises(SchemaMismatchError, match=message):
        proxy.push(items)
    proxy.push(rows(1))
    assert sink.numbers == [[0, 1]]


def test_pushed_arrays_may_be_used_again_at_once() -> None:
    proxy, sink, _ = make(2)
    items = rows(7)
    proxy.push(items)
    items["n"][:], items["pair"][:] = 99, 99
    proxy.flush()
    assert sink.numbers == [[7]]
