"""Copies the items of a dataset into a run's own replay before training begins."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from common.errors import DatasetError, RefusedError
from common.parts import Parts
from learner.datasets.opening import Dataset
from learner.records.progress import loading_progress
from learner.replay.local_sink import LocalSink
from learner.replay.memory import ReplayMemory
from learner.replay.value_rules import ValueRules

log = logging.getLogger(__name__)


def load_dataset(
    dataset: Dataset,
    parts: Parts,
    memory: ReplayMemory,
    rules: ValueRules,
    batch: int,
    *,
    whole: bool = False,
    console: Console | None = None,
) -> None:
    """Copy the items of a dataset into a replay. No other process may write to the replay meanwhile.

    Args:
        dataset: is read to its end.
        parts: of the run; the items must have the columns of its schema.
        memory: the replay.
        rules: which values a column may hold.
        batch: items per write; the replay must have room for as many.
        whole: refuse a dataset that is larger than the replay. Otherwise the replay keeps the newest items.
        console: a terminal that shows the progress; None logs plain lines.

    Raises:
        DatasetError: the dataset is empty or too large, or has a value that a column refuses.
        SchemaMismatchError: the items have other columns.
    """
    sink, before = LocalSink(memory, rules), memory.committed
    with loading_progress(dataset.name, len(dataset), console) as advance:
        for items in dataset.items(parts):
            rows = memory.schema.count(items)
            if whole:
                _require_room(memory, rows, dataset)
            for start in range(0, rows, batch):
                with _naming_the_item(dataset, memory.committed):
                    sink.push({name: column[start : start + batch] for name, column in items.items()})
            advance(rows)
    if memory.committed == before:
        raise DatasetError(f"dataset {dataset.name}: expected items to learn from, found none")
    for name, n in rules.outside_found.items():
        if n:
            log.warning("dataset %s: column '%s': %d values are outside the bounds of its space", dataset.name, name, n)


def _require_room(memory: ReplayMemory, rows: int, dataset: Dataset) -> None:
    """Refuse items that would overwrite others. ``len(dataset)`` cannot tell: a step may become several items."""
    if memory.committed - memory.began + rows > memory.capacity:
        raise DatasetError(
            f"dataset {dataset.name}: expected at most {memory.capacity} items of {len(dataset)} steps, found more; "
            "raise replay.capacity"
        )


@contextmanager
def _naming_the_item(dataset: Dataset, first: int) -> Iterator[None]:
    """Name the dataset and the item in the error of a refused value; the items that are stored count from ``first``."""
    try:
        yield
    except RefusedError as error:
        if error.bad is None:
            raise
        raise DatasetError(f"dataset {dataset.name}: {error.bad.at(f'item {first + error.bad.row}')}") from error
