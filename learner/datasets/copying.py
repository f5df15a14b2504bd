"""Recorded items are copied into a run's own replay before training begins."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from common.errors import DatasetError, RefusedError
from common.parts import Parts
from learner.datasets.datasets import Dataset
from learner.records.progress import loading
from learner.replay.local_sink import LocalSink
from learner.replay.memory import ReplayMemory
from learner.replay.value_rules import ValueRules

log = logging.getLogger(__name__)


def load(
    dataset: Dataset,
    parts: Parts,
    memory: ReplayMemory,
    rules: ValueRules,
    batch: int,
    *,
    whole: bool = False,
    console: Console | None = None,
) -> None:
    """Copy the items of a dataset into a replay to which nobody else is writing yet.

    Args:
        dataset: has the items.
        parts: of the run; their columns are those that the items must have.
        memory: takes the items.
        rules: of the values it may hold.
        batch: items written at once, for which the replay must have room.
        whole: refuse a dataset that is larger than the replay; otherwise its newest items stay.
        console: shows the loading on it if it is a terminal; None logs plain lines.

    Raises:
        DatasetError: there is no item, no room, or a value that a column refuses.
        SchemaMismatchError: the items have other columns.
    """
    sink, before = LocalSink(memory, rules), memory.committed
    with loading(dataset.name, len(dataset), console) as more:
        for items in dataset.items(parts):
            rows = memory.schema.count(items)
            if whole:
                _require_room(memory, rows, dataset)
            for start in range(0, rows, batch):
                with _naming_the_item(dataset.name, memory.committed):
                    sink.push({name: column[start : start + batch] for name, column in items.items()})
            more(rows)
    if memory.committed == before:
        raise DatasetError(f"dataset {dataset.name}: expected items to learn from, found none")
    for name, n in rules.outside_found.items():
        if n:
            log.warning("dataset %s: column '%s': %d values are outside the bounds of its space", dataset.name, name, n)


def _require_room(memory: ReplayMemory, rows: int, dataset: Dataset) -> None:
    """See that no item would be overwritten: a step processor may give more than one a step."""
    if memory.committed - memory.began + rows > memory.capacity:
        raise DatasetError(
            f"dataset {dataset.name}: expected at most {memory.capacity} items of {len(dataset)} steps, found more; "
            "raise replay.capacity"
        )


@contextmanager
def _naming_the_item(dataset: str, first: int) -> Iterator[None]:
    """Around storing items numbered from ``first``: a value that is refused is the dataset's."""
    try:
        yield
    except RefusedError as error:
        if error.bad is None:
            raise
        raise DatasetError(f"dataset {dataset}: {error.bad.at(f'item {first + error.bad.row}')}") from error
