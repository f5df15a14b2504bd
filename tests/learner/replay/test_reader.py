"""Rows that a writer overwrites while they are gathered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.data import Items
from learner.replay.reader import ReplayReader
from learner.replay.writer import ReplayWriter
from tests.learner.replay.memories import make, rows


def overwrite_while_gathering(monkeypatch: pytest.MonkeyPatch, write: Callable[[], None]) -> None:
    """Call ``write`` just before the first column of the next gather is read."""
    take = np.take

    def take_while_the_writer_goes_on(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        write()
        return take(*arguments, **options)

    monkeypatch.setattr(np, "take", take_while_the_writer_goes_on)


def store(writer: ReplayWriter, start: int, count: int) -> None:
    writer.append(rows(start, count), count, incarnation=1, seq=writer.last_seq(1) + 1)


def test_rows_that_are_overwritten_while_they_are_gathered_are_drawn_again_with_their_other_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, writer = make(tmp_path)
    store(writer, 0, 10)
    draws = iter([[0, 9, 3], [1, 12]])

    def draw(size: int) -> Items:
        index = np.array(next(draws))
        assert len(index) == size, "only rows that may be torn are drawn again"
        if len(index) == 2:
            index[0] = 11  # The first draw's row 0 has become row 10.
        return {"index": index, "weight": index / 2}

    overwrite_while_gathering(monkeypatch, lambda: store(writer, 10, 4))
    drawn, items = ReplayReader(memory).take(draw, 3)
    assert drawn["index"].tolist() == [11, 9, 12]
    assert drawn["weight"].tolist() == [5.5, 4.5, 6.0]
    assert items["n"].tolist() == [11, 9, 12]
    assert items["pair"].tolist() == [[11, 11], [9, 9], [12, 12]]


def test_rows_are_drawn_again_until_none_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, writer = make(tmp_path)
    store(writer, 0, 10)
    draws = iter([[2], [5], [20]])

    def draw(_: int) -> Items:
        index = np.array(next(draws))
        if index[0] == 5:
            overwrite_while_gathering(monkeypatch, lambda: store(writer, 13, 10))
        return {"index": index}

    overwrite_while_gathering(monkeypatch, lambda: store(writer, 10, 3))
    drawn, items = ReplayReader(memory).take(draw, 1)
    assert drawn["index"].tolist() == items["n"].tolist() == [20]


def test_items_are_read_by_index_unless_one_is_gone_or_overwritten_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, writer = make(tmp_path)
    store(writer, 0, 10)
    store(writer, 10, 2)
    reader = ReplayReader(memory)
    found = reader.read(np.array([2, 11, 7]))
    assert found is not None
    assert found["n"].tolist() == [2, 11, 7]
    assert reader.read(np.array([5, 1])) is None, "item 1 is gone"
    overwrite_while_gathering(monkeypatch, lambda: store(writer, 12, 1))
    assert reader.read(np.array([2, 11])) is None, "item 2 was overwritten"


def test_the_bounds_are_those_of_the_items_that_count(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    reader = ReplayReader(memory)
    with pytest.raises(IndexError, match="nothing to draw from"):
        reader.bounds()
    store(writer, 0, 10)
    store(writer, 10, 3)
    assert reader.bounds() == (3, 13)
    memory.exclude(np.arange(3, 12))
    assert reader.bounds() == (3, 13), "excluded items lie between the bounds"
    memory.exclude(np.array([12]))
    with pytest.raises(IndexError, match="nothing to draw from"):
        reader.bounds()
