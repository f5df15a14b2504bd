"""Copies the rows of a dataset into a replay: that of the run, or one of its read-only sources."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

from common.data import Items, Schema
from common.depth import parse_json
from common.errors import ConfigError, DatasetError, RefusedError, RunDirectoryError
from common.parts import Parts
from learner.datasets.opening import Dataset, open_dataset
from learner.records.progress import loading_progress
from learner.replay.memory import ReplayMemory
from learner.replay.recovery import settle_whole
from learner.replay.value_rules import ValueRules
from learner.replay.writer import ReplayWriter
from learner.shared.durable import removing_unfinished, sync

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

        # Rows of several short episodes become one batch of the replay, whose log has too few records for one each.
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


NOTE: Final = "dataset.json"
"""The file with the name of the dataset of which a source is a copy."""


def open_source(name: str, dataset: str, shared: Path, parts: Parts, rules: ValueRules) -> ReplayMemory:
    """The rows of a dataset as a replay that stays as it is; they are copied once in the life of a run.

    Args:
        name: of the source.
        dataset: see ``learner.datasets.opening.open_dataset``.
        shared: the run's shared directory, which gets the files as ``sources/NAME``.
        parts: of the run; the rows have the columns of its schema.
        rules: which values a column may hold.

    Raises:
        ConfigError: the run has a copy of another dataset under this name.
        DatasetError: the dataset cannot be read, is empty, or has a value that a column refuses.
        SchemaMismatchError: the rows have other columns.
        RunDirectoryError: the files cannot be made or opened, or were copied and are not whole.
    """
    path = shared / "sources" / name
    if not path.exists():
        _copy(dataset, path, parts, rules)
    elif (path / NOTE).exists() and (copied := _read_note(path / NOTE)) != dataset:
        raise ConfigError(
            f"replay.sources.{name}.dataset: expected '{copied}', of which this run has a copy, found '{dataset}'; to "
            "learn from another dataset, begin a new run"
        )
    memory = ReplayMemory.open_saved(path)
    memory.schema.require_equal(parts.schema, mine=f"source {name}", theirs="this run")
    if not memory.is_settled():
        _verify(path, parts, memory.capacity, dataset)
    return memory


def _verify(path: Path, parts: Parts, capacity: int, dataset: str) -> None:
    """Compare a source with its checksums after somebody has copied or restored the run, and note that it is whole.

    A source that has lost rows is refused: a dataset usually exists elsewhere, and no row of it need be given up.
    """
    log.info("%s: its files were copied: every batch is compared with its checksum", path)
    if not settle_whole(ReplayMemory(path, parts.schema, capacity, create=False)):
        raise RunDirectoryError(
            f"{path}: expected the rows of dataset '{dataset}' as they were stored, found others or fewer: the run's "
            f"directory was damaged or copied in part; copy {path} again, or remove it to have the dataset read again"
        )


def _read_note(note: Path) -> str:
    """The dataset of which a source is a copy."""
    try:
        return str(parse_json(note.read_text())["dataset"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunDirectoryError(f"{note}: expected the name of a dataset, found {error!r}") from error


def _copy(dataset: str, path: Path, parts: Parts, rules: ValueRules) -> None:
    """Copy a dataset into new files, which are at ``path`` once they are whole."""
    with removing_unfinished(path.with_name(f".{path.name}.part")) as draft:
        shutil.rmtree(draft, ignore_errors=True)
        draft.parent.mkdir(exist_ok=True)
        with open_dataset(dataset) as found:
            memory = ReplayMemory(draft, parts.schema, max(1, len(found)), create=True)
            load_dataset(found, parts, memory, rules, whole=True)
        (draft / NOTE).write_text(json.dumps({"dataset": dataset}))
        memory.close()  # It syncs all files of the directory, the note too.
        draft.rename(path)
        sync(path.parent)
