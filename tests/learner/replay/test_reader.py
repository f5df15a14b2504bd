"""Rows that a writer overwrites while they are gathered, and links as a reader sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.data import Array
from common.process.clocks import Deadline
from learner.replay.reader import Draws, MakeDraws, NothingToDrawError, ReplayReader, find_arrivals
from learner.replay.uniform import UniformReplay
from learner.replay.view import Plan, Rows, View
from learner.replay.writer import ReplayWriter
from learner.views.items import SelfContained
from learner.views.sequences import Sequences
from learner.views.transitions import Transitions
from tests.conftest import PATIENCE, wait_for
from tests.learner.replay.memories import (
    LANES,
    SCHEMA,
    linked_rows,
    make,
    next_rows,
    open_linked,
    previous_rows,
    rows,
    writing,
)
from tests.learner.views.lanes import SCHEMA as LANES_SCHEMA
from tests.learner.views.lanes import Lanes

VIEW = SelfContained(SCHEMA)


def reader_of(memory: Any, view: View = VIEW) -> ReplayReader:
    return ReplayReader(memory, view, np.random.default_rng(0))


def overwrite_while_gathering(monkeypatch: pytest.MonkeyPatch, write: Callable[[], None]) -> None:
    """Call ``write`` just before the first column of the next gather is read."""
    fill = ReplayReader.fill

    def fill_while_the_writer_goes_on(*arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        write()
        return fill(*arguments, **named)

    monkeypatch.setattr(ReplayReader, "fill", fill_while_the_writer_goes_on)


def store(writer: ReplayWriter, start: int, count: int) -> None:
    writer.append(rows(start, count), count, incarnation=1, seq=writer.last_seq(1) + 1)


def making(reader: ReplayReader, draws: Iterator[list[int]]) -> MakeDraws:
    """Draws of these rows in turn, each with a column ``weight``."""

    def make_draws(size: int) -> Draws:
        reader.look()
        index = np.array(next(draws))
        assert len(index) == size, "only draws that may be torn are made again"
        return Draws(index, VIEW.plan(reader, index), {"weight": index / 2})

    return make_draws


def test_draws_that_are_overwritten_while_they_are_gathered_are_made_again_with_their_other_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, writer = make(tmp_path)
    store(writer, 0, 10)
    reader = reader_of(memory)
    overwrite_while_gathering(monkeypatch, lambda: store(writer, 10, 4))
    draws, batch = reader.gather(making(reader, iter([[0, 9, 3], [11, 12]])), 3)
    assert draws.index.tolist() == [11, 9, 12]
    assert draws.beside["weight"].tolist() == [5.5, 4.5, 6.0]
    assert batch["n"].tolist() == [11, 9, 12]
    assert batch["pair"].tolist() == [[11, 11], [9, 9], [12, 12]]


def test_draws_are_made_again_until_none_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, writer = make(tmp_path)
    store(writer, 0, 10)
    reader = reader_of(memory)
    given = iter([[2], [5], [20]])

    def draws() -> Iterator[list[int]]:
        for index in given:
            if index == [5]:
                overwrite_while_gathering(monkeypatch, lambda: store(writer, 13, 10))
            yield index

    overwrite_while_gathering(monkeypatch, lambda: store(writer, 10, 3))
    made, batch = reader.gather(making(reader, draws()), 1)
    assert made.index.tolist() == batch["n"].tolist() == [20]


def test_draws_that_are_always_spoilt_end_with_an_error(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    store(writer, 0, 10)
    memory.exclude(np.array([4]))
    reader = reader_of(memory)
    with pytest.raises(NothingToDrawError, match="nothing to draw from"):
        reader.gather(making(reader, repeat([4])), 1)


def test_batches_of_all_sizes_share_one_array_for_each_column(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    store(writer, 0, 10)
    reader = reader_of(memory)
    draws = making(reader, iter([[1, 2, 3], [4], [5, 6]]))
    _, largest = reader.gather(draws, 3)
    assert largest["n"].tolist() == [1, 2, 3]
    for size, expected in ((1, [4]), (2, [5, 6])):
        _, batch = reader.gather(draws, size)
        assert batch["n"].tolist() == expected
        assert np.shares_memory(batch["n"], largest["n"])


class Neighbours(View):
    """Two columns of a row and the row after it, and one that is made of the row before."""

    def can_draw(self, rows: Rows, index: Array) -> Array:
        return np.ones(len(index), np.bool_)

    def plan(self, rows: Rows, index: Array) -> Plan:
        before = rows.take("n", index - 1)
        return Plan({"n": ("n", index), "after": ("n", index + 1)}, index - 1, {"before": before}, also=(index - 1,))


def test_no_row_from_which_a_draw_takes_or_makes_a_value_is_excluded(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    store(writer, 0, 10)
    memory.exclude(np.array([4]))
    reader = reader_of(memory, Neighbours())
    reader.look()
    plan = reader.view.plan(reader, np.arange(1, 9))
    assert reader.find_spoilt(plan).tolist() == [2, 3, 4], "the draws at rows 3, 4 and 5"


def test_the_rows_are_those_that_count(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    reader = reader_of(memory)
    with pytest.raises(NothingToDrawError, match="nothing to draw from"):
        reader.look()
    store(writer, 0, 10)
    store(writer, 10, 3)
    reader.look()
    assert (reader.first, reader.end) == (3, 13)
    memory.exclude(np.arange(3, 12))
    reader.look()
    assert (reader.first, reader.end) == (3, 13), "excluded rows lie between"
    assert reader.can_draw(np.arange(3, 13)).tolist() == [False] * 9 + [True]
    memory.exclude(np.array([12]))
    with pytest.raises(NothingToDrawError, match="nothing to draw from"):
        reader.look()


def test_links_lead_to_the_neighbours_in_the_lane_that_are_there(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True, capacity=40)
    writer = ReplayWriter(memory)
    for seq in range(1, 12):  # More than twice around the ring.
        writer.append(linked_rows(memory.committed, 8), 8, incarnation=1, seq=seq)
        reader = reader_of(memory, SelfContained(memory.schema))
        reader.look()
        index = np.arange(reader.first, reader.end)
        np.testing.assert_array_equal(reader.take("n", index), index)
        assert reader.next(index).tolist() == next_rows(memory).tolist()
        assert reader.previous(index).tolist() == previous_rows(memory).tolist()
        chain = reader.chain(index, 3)
        expected = index[:, None] + LANES * np.arange(4)
        np.testing.assert_array_equal(chain, np.where(expected < reader.end, expected, -1))


def test_rows_that_come_after_the_look_are_not_known(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True)
    writer = ReplayWriter(memory)
    writer.append(linked_rows(0, 6), 6, incarnation=1, seq=1)
    reader = reader_of(memory, SelfContained(memory.schema))
    reader.look()
    writer.append(linked_rows(6, 6), 6, incarnation=1, seq=2)
    assert reader.next(np.array([0, 3])).tolist() == [3, -1]
    assert reader.chain(np.array([0]), 3).tolist() == [[0, 3, -1, -1]]
    reader.look()
    assert reader.next(np.array([0, 3])).tolist() == [3, 6]


class Steps(View):
    """A row and the next two of its lane."""

    def can_draw(self, rows: Rows, index: Array) -> Array:
        able: Array = rows.chain(index, 2)[:, -1] >= 0
        return able

    def plan(self, rows: Rows, index: Array) -> Plan:
        path = rows.chain(index, 2)
        return Plan({"n": ("n", index), "path": ("n", path), "many": ("many", path)}, lowest=index)


def test_no_draw_is_torn_or_linked_wrongly_while_another_process_overwrites(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True)
    with writing(tmp_path, "linked"):
        wait_for(lambda: len(memory) > 256, "the first rows")
        replay, before = UniformReplay(memory, Steps(), seed=0), memory.committed
        draws, deadline = 0, Deadline(PATIENCE)
        while draws < 400 or memory.committed < before + 50 * memory.capacity:  # Rows are overwritten meanwhile.
            assert not deadline.passed(), f"{draws} draws, {memory.committed - before} rows"
            draws += 1
            batch = replay.batch(256)
            np.testing.assert_array_equal(batch["path"], batch["n"][:, None] + LANES * np.arange(3))
            np.testing.assert_array_equal(batch["many"], np.repeat(batch["path"][..., None], 8, axis=-1))


VIEWS = [
    Transitions(LANES_SCHEMA),
    Transitions(LANES_SCHEMA, discount_factor=0.9, n=3),
    Transitions(LANES_SCHEMA, 2),
    Sequences(LANES_SCHEMA, length=4),
    Sequences(LANES_SCHEMA, length=4, across=True),
    Sequences(LANES_SCHEMA, length=6, burn_in=3, period=2),
]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("seed", range(3))
def test_all_rows_that_can_be_drawn_are_found_once(tmp_path: Path, view: View, seed: int) -> None:
    lanes, rng, found, seen = Lanes(tmp_path), np.random.default_rng(seed), list[int](), 0
    for _ in range(30):
        lengths = [int(n) for n in rng.integers(1, 8, rng.integers(1, 4))]
        lanes.play(*lengths, ends=bool(rng.integers(2)), lane=int(rng.integers(3)))
        if rng.integers(2):
            lanes.play_in_turn(lengths)
        found += find_arrivals(lanes.reader(view), seen).tolist()
        seen = lanes.memory.committed
        assert sorted(found) == lanes.drawable(view)
        assert len(set(found)) == len(found)
