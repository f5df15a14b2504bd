"""Copies the rows of a dataset into a replay."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console

from common.data import Items, Schema
from common.errors import DatasetError, RefusedError
from common.parts import Parts
from learner.datasets.opening import Dataset
from learner.records.progress import loading_progress
from learner.replay.memory import ReplayMemory
from learner.replay.value_rules import ValueRules
from learner.replay.writer import ReplayWriter

log = logging.getLogger(__name__)
FIRST_INCARNATION: Final = 2
"""The incarnation under which the first group of a dataset is stored; that of the run's own process is lower."""
MAX_ROWS: Final = 4096
MAX_BYTES: Final = 16 << 20
"""The most rows, and bytes of rows, that are stored at a time."""


def load_dataset(
    dataset: Dataset,
    parts: Parts,
    memory: ReplayMemory,
    rules: ValueRules,
    *,
    whole: bool = False,
    console: Console | None = None,
) -> None:
    """Copy the rows of a dataset into a replay. No other process may write to the replay during the copy.

    Args:
        dataset: is read to its end.
        parts: of the run; the rows must have the columns of its schema.
        memory: the replay.
        rules: which values a column may hold.
        whole: refuse a dataset that is larger than the replay. Otherwise the replay keeps the newest rows.
        console: a terminal that shows the progress; None logs plain lines.

    Raises:
        DatasetError: the dataset is empty or too large, or has a value that a column refuses.
        SchemaMismatchError: the rows have other columns.
    """
    writer, before = ReplayWriter(memory), memory.committed
    at_once = _rows_at_once(memory)
    with loading_progress(dataset.name, len(dataset), console) as advance:

        def store(group: int, items: Items) -> None:
            incarnation = FIRST_INCARNATION + group
            seq = writer.last_seq(incarnation) + 1
            writer.append(items, memory.schema.count(items), incarnation=incarnation, seq=seq)

        waiting = _Waiting(memory.schema, at_once, store)
        for group, items in dataset.items(parts):
            rows = memory.schema.count(items)
            if whole:
                _require_room(memory, waiting.count + rows, dataset)
            for start in range(0, rows, at_once):
                part = {name: column[start : start + at_once] for name, column in items.items()}
                n = memory.schema.count(part)
                with _naming_the_row(dataset, start):
                    waiting.add(group, rules.check(part, n), n)
            advance(rows)
        waiting.store()
    if memory.committed == before:
        raise DatasetError(f"dataset {dataset.name}: expected rows to learn from, found none")
    for name, n in rules.outside_found.items():
        if n:
            log.warning("dataset %s: column '%s': %d values are outside the bounds of its space", dataset.name, name, n)


class _Waiting:
    """Rows of short episodes that wait to be stored as one batch: the log has too few records for a batch of each.

    Args:
        schema: of the rows.
        room: the most rows that wait.
        store: takes the number of a group and its rows.
    """

    def __init__(self, schema: Schema, room: int, store: Callable[[int, Items], None]) -> None:
        self.count = 0
        self._rows, self._room, self._store, self._group = schema.empty(room), room, store, 0

    def add(self, group: int, items: Items, n: int) -> None:
        """Copy ``n`` rows, at most as many as there is room for; rows of another group are stored before."""
        if group != self._group or self.count + n > self._room:
            self.store()
        for name, column in self._rows.items():
            column[self.count : self.count + n] = items[name]
        self._group, self.count = group, self.count + n

    def store(self) -> None:
        """Store the rows that wait, if there are any."""
        if self.count:
            self._store(self._group, {name: column[: self.count] for name, column in self._rows.items()})
        self.count = 0


def _rows_at_once(memory: ReplayMemory) -> int:
    return max(1, min(MAX_ROWS, MAX_BYTES // memory.schema.row_bytes, memory.capacity))


def _require_room(memory: ReplayMemory, rows: int, dataset: Dataset) -> None:
    """Refuse rows that would overwrite others. ``len(dataset)`` cannot tell: a step may become several items."""
    if memory.committed - memory.began + rows > memory.capacity:
        raise DatasetError(
            f"dataset {dataset.name}: expected at most {memory.capacity} rows, found more in its {len(dataset)}; "
            "raise replay.capacity"
        )


@contextmanager
def _naming_the_row(dataset: Dataset, first: int) -> Iterator[None]:
    """Name the dataset and the row in the error of a refused value; the rows begin at row ``first`` of the chunk."""
    try:
        yield
    except RefusedError as error:
        if error.bad is None:
            raise
        raise DatasetError(
            f"dataset {dataset.name}: {error.bad.at(dataset.name_row(first + error.bad.row))}"
        ) from error
