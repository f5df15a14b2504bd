"""Copies the rows of a dataset into a replay."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console

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
        for group, items in dataset.items(parts):
            rows = memory.schema.count(items)
            if whole:
                _require_room(memory, rows, dataset)
            for start in range(0, rows, at_once):
                part = {name: column[start : start + at_once] for name, column in items.items()}
                n = memory.schema.count(part)
                with _naming_the_row(dataset, start):
                    checked = rules.check(part, n)
                incarnation = FIRST_INCARNATION + group
                writer.append(checked, n, incarnation=incarnation, seq=writer.last_seq(incarnation) + 1)
            advance(rows)
    if memory.committed == before:
        raise DatasetError(f"dataset {dataset.name}: expected rows to learn from, found none")
    for name, n in rules.outside_found.items():
        if n:
            log.warning("dataset %s: column '%s': %d values are outside the bounds of its space", dataset.name, name, n)


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
