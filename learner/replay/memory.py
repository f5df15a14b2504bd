"""Memory-mapped columns with one writer and any number of readers. No kill loses an acknowledged row.

Rows have absolute indices 0, 1, 2, …; row i lives in slot ``i mod n_slots``. A replay of self-contained items has one
row for each item. Otherwise the rows of each lane are linked, see ``learner.replay.links``. A row that is not final is
a step, and counters count steps. An append writes in this order:

    oldest  →  rows, with the links within the batch  →  record of the batch  →  batches += 1
            →  next of earlier rows  →  cursor, counters  →  committed = end

A kill -9 between any two steps leaves files that can be opened: once ``batches`` counts the batch, the replay has the
batch, its links and its cursor; before, it has none of them. A reader chooses rows in ``[oldest, committed)`` and
treats links to rows from ``committed`` on as unknown. It gathers the rows, reads ``oldest`` again, and redraws the
rows that were overwritten while it gathered them.

``learner.replay.writer`` is the only writer, and ``learner.replay.reader`` gathers rows.

A replay with slack has more slots than rows that count. So rows that fell out of ``[oldest, committed)`` stay in their
slots for a while; ``intact`` is the oldest of them. A process that writes and trains alone can then roll the replay
back to an earlier moment.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from common.data import FINAL, Array, Column, Items, Schema
from common.depth import parse_json
from common.errors import RunDirectoryError, SchemaMismatchError
from common.shared.mapped import Word, Words, identify, map_file
from learner.replay.batch_log import RECORD, Batch, BatchLog, choose_length
from learner.replay.links import Links
from learner.replay.ring import LARGE_BYTES, compute_checksum, fault_in, read_ring, view_as_ring
from learner.shared.durable import replace_text, sync

LAYOUT_VERSION: Final = 4
_COUNTS: Final = ("capacity", "slack", "began", "steps_began")


@dataclass(frozen=True)
class Layout:
    """``layout.json`` of a replay: its columns, its room and the version of its files.

    Args:
        schema: columns of a row.
        capacity: rows kept.
        slack: slots beyond ``capacity``.
        began: absolute index of the first row; above 0 if an earlier replay of the run was lost.
        steps_began: steps that count as stored before the first row.
        version: of the files.
    """

    schema: Schema
    capacity: int
    slack: int
    began: int = 0
    steps_began: int = 0
    version: int = LAYOUT_VERSION

    def write(self, directory: Path) -> None:
        """Write ``layout.json``, whole or not at all, and sync it.

        Raises:
            OSError: it cannot be written.
        """
        replace_text(directory / "layout.json", json.dumps({**asdict(self), "schema": self.schema.to_json()}))

    @classmethod
    def read(cls, directory: Path) -> Layout:
        """Read ``layout.json``.

        Raises:
            RunDirectoryError: the file is missing or cannot be read, or another release wrote it.
        """
        try:
            return cls.of(parse_json((directory / "layout.json").read_text()), str(directory))
        except FileNotFoundError as error:
            reason = f"{directory}: no readable replay memory: expected that of a run, found no layout.json"
            raise RunDirectoryError(reason) from error
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunDirectoryError(f"{directory}: no readable replay memory: layout.json: {error!r}") from error

    @classmethod
    def of(cls, values: Mapping[str, Any], place: str) -> Layout:
        """The layout that ``layout.json`` holds as these values.

        Raises:
            RunDirectoryError: another release wrote it; the message names ``place``.
            ValueError, LookupError, TypeError, AttributeError: the values are not those of a layout.
        """
        _require_version(values["version"], place)
        schema = Schema.from_json(values["schema"])
        return cls(schema, **{name: _as_count(name, values[name]) for name in _COUNTS})

    def require_same(self, found: Layout, directory: Path) -> None:
        """Check that the files in ``directory`` have this layout; slack and beginning may differ.

        Raises:
            SchemaMismatchError: the files have other columns, or room for another number of rows.
        """
        self.schema.require_equal(found.schema, "this run", f"replay in {directory}")
        if self.capacity != found.capacity:
            raise SchemaMismatchError(f"{directory}: expected capacity {self.capacity}, found {found.capacity}")


def _as_count(name: str, value: object) -> int:
    """A value of ``layout.json``."""
    if type(value) is not int or value < (name == "capacity"):
        raise ValueError(f"{name}: expected a whole number of rows, found {value!r}")
    return value


def _require_version(version: object, place: str) -> None:
    """Raise a RunDirectoryError for files of another version."""
    if version == LAYOUT_VERSION:
        return
    raise RunDirectoryError(
        f"{place}: expected a replay of layout {LAYOUT_VERSION}, found layout {version!r}, which another "
        "release wrote; only that release can resume its runs"
    )


N_CURSORS: Final = 8192
CURSOR: Final = np.dtype([("incarnation", "<u8"), ("seq", "<u8"), ("end", "<i8"), ("unused", "<u8")])
"""An actor process, the seq of its newest batch, and where rows end with that batch. 32 bytes, so no cursor lies across
the border of two pages."""


class _Header(Words):
    N_WORDS = 8
    oldest = Word(0)
    """Absolute index of the oldest row that counts."""
    committed = Word(1)
    """Rows ever stored; the absolute index of the next row."""
    steps = Word(2)
    """Steps ever stored."""
    drawable = Word(3)
    """Steps that count and whose next rows are known; of self-contained items, all that count."""
    intact = Word(4)
    """Absolute index of the oldest row that has not been overwritten; at most ``oldest``."""
    batches = Word(5)
    """Batches ever stored; the number of the next batch."""
    place = Word(6)
    """Which files these are, and in which boot and mount they are written, see ``ReplayMemory.is_settled``. 0: unknown,
    so the next start compares all batches."""


class ReplayMemory:
    """The files of one replay: ``layout.json``, ``header``, ``cursors``, ``batches``, a file per column, and links.

    Args:
        directory: where the files are.
        schema: columns of a row.
        capacity: rows kept.
        create: make new files; otherwise open existing ones.
        slack: slots beyond ``capacity`` in new files; existing files keep their slack.
        began: absolute index of the first row of new files; existing files know their own.
        steps_began: steps that count as stored before that row; None: as many as rows.
        writable: open the files for reading and writing; otherwise for reading only.
        checked: refuse a header that contradicts the other files; otherwise the caller asks ``learner.replay.recovery``
            which rows are whole before it reads or writes any.

    Raises:
        RunDirectoryError: the files cannot be made or opened, have another layout, or contradict one another.
        SchemaMismatchError: the files hold other columns, or more or fewer rows.
    """

    def __init__(
        self,
        directory: Path,
        schema: Schema,
        capacity: int,
        *,
        create: bool,
        slack: int = 0,
        began: int = 0,
        steps_began: int | None = None,
        writable: bool = True,
        checked: bool = True,
    ) -> None:
        self.directory = directory
        self.schema = schema
        self.capacity = capacity
        layout = Layout(schema, capacity, slack, began, began if steps_began is None else steps_began)
        if create:
            directory.mkdir(parents=True)
        else:
            found = Layout.read(directory)
            layout.require_same(found, directory)
            layout = found
        self.slack, self.began, self.steps_began = layout.slack, layout.began, layout.steps_began
        self.n_slots = capacity + layout.slack
        self.excluded: Array = np.empty(0, np.int64)
        """Absolute indices that are never drawn, ``[n]`` int64, sorted; see ``exclude``."""
        self._map_files(create=create, writable=writable)
        if create:
            header = self.header
            header.oldest = header.intact = header.committed = self.began
            header.steps = self.steps_began
            self.sync()
            layout.write(directory)  # Last: a directory with ``layout.json`` has all files.
            self.settle()
        elif checked and (problem := self.find_problem()):
            raise RunDirectoryError(f"{directory / 'header'}: {problem}")

    def _map_files(self, *, create: bool, writable: bool) -> None:
        directory = self.directory
        mapped = partial(map_file, create=create, writable=writable)
        self.header = _Header(mapped(directory / "header", 8 * _Header.N_WORDS))
        self.cursors: Array = np.frombuffer(mapped(directory / "cursors", CURSOR.itemsize * N_CURSORS), CURSOR)
        self._files = [(mapped(self._path_of(c), self.n_slots * c.row_bytes), c) for c in self.schema.columns]
        self.columns: Items = {c.name: view_as_ring(file, c) for file, c in self._files}
        """The ring of each column, ``[n_slots, *shape]``."""
        self.links = Links(mapped, directory, self.columns, self.n_slots) if self.schema.is_rows else None
        """None for self-contained items."""
        before = [self.links.previous] if self.links is not None else []
        self.rings = [*self.columns.values(), *before]
        """All rings whose values belong to a batch and never change: columns, and the links to earlier rows."""
        # Only a process that trains in turns needs slack; it stores the step of each environment as one batch.
        n_records = choose_length(self.n_slots, single_rows=self.slack > 0)
        self.log = BatchLog(mapped(directory / "batches", RECORD.itemsize * n_records))

    @classmethod
    def open_saved(cls, directory: Path) -> ReplayMemory:
        """Open existing files for reading only, with the columns and the room that their layout names.

        Raises:
            RunDirectoryError: the files cannot be opened, or have another layout.
        """
        layout = Layout.read(directory)
        return cls(directory, layout.schema, layout.capacity, create=False, writable=False)

    @property
    def n_bytes(self) -> int:
        """Bytes allocated for rows and their links."""
        return sum(ring.nbytes for ring in self.rings) + (self.links.next.nbytes if self.links is not None else 0)

    @property
    def committed(self) -> int:
        """Rows ever stored; the absolute index of the next row."""
        return int(self.header.committed)

    @property
    def steps(self) -> int:
        """Steps ever stored: rows that are not final, and all self-contained items."""
        return int(self.header.steps)

    @property
    def drawable(self) -> int:
        """Steps that count and whose next rows are known; of self-contained items, all that count."""
        return int(self.header.drawable)

    def __len__(self) -> int:
        """Rows that count."""
        return max(0, self.committed - self.first())

    def first(self) -> int:
        """Absolute index of the oldest row that counts."""
        return int(self.header.oldest)

    def count_drawable(self, first: int, end: int) -> int:
        """How many of the rows ``[first, end)`` can be drawn as steps, looking at each of them."""
        return end - first if self.links is None else self.links.count_steps(first, end)

    def recount(self) -> None:
        """Count the steps that can be drawn: a kill may have left another count in the header."""
        self.header.drawable = self.count_drawable(self.first(), self.committed)

    def count_steps(self, first: int, end: int) -> int:
        """How many of the rows ``[first, end)`` are steps."""
        if self.links is None:
            return end - first
        return end - first - int(np.count_nonzero(read_ring(self.columns[FINAL.name], first, end)))

    def exclude(self, indices: Array) -> None:
        """Never draw the rows with these absolute indices ``[n]``, in this process. They should be few.

        This comes before a buffer draws from the memory: what it has gathered ahead, or has given a priority, stays.
        """
        self.excluded = np.union1d(self.excluded, indices.astype(np.int64))

    def count_excluded(self, first: int, end: int) -> int:
        """How many of the rows with absolute indices in ``[first, end)`` are excluded."""
        excluded = self.excluded
        return int(np.diff(np.searchsorted(excluded, (first, end)))[0]) if len(excluded) else 0

    def is_excluded(self, indices: Array) -> Array:
        """Which of these absolute indices ``[…]`` are excluded, ``[…]`` bool."""
        return np.isin(indices, self.excluded)

    def find_origins(self, indices: Array) -> Array:
        """The incarnations of the actor processes that sent the rows of these absolute indices ``[n]``.

        Returns:
            ``[n]`` uint64; 0 where it is not known: the row is gone, or older than the oldest record in the log.
        """
        known = self.log.copy_newest(int(self.header.batches))
        if not len(known):
            return np.zeros(len(indices), np.uint64)
        at = np.searchsorted(known["start"], indices, side="right") - 1
        batch = known[np.maximum(at, 0)]
        is_there = (at >= 0) & (indices - batch["start"] < batch["rows"])
        return np.where(is_there, batch["incarnation"], 0).astype(np.uint64)

    def read_last_batch(self) -> Batch | None:
        """The record of the batch that was stored last; None if there is no batch, or its record is damaged."""
        return self.log.read(int(self.header.batches) - 1)

    def find_problem(self) -> str | None:
        """A contradiction between header, cursors and log, with the values expected and found; None if there is none.

        A writer may store batches during this check, and every figure only grows. So each figure is read before the
        figures that bound it from above: a batch that is stored in between raises the bounds and breaks none of them.
        """
        cursors_end, steps = int(self.cursors["end"].max(initial=0)), self.steps
        intact, committed, oldest = (int(getattr(self.header, name)) for name in ("intact", "committed", "oldest"))
        last = self.read_last_batch()
        if last is None and self.header.batches:
            return f"expected the record of batch {int(self.header.batches) - 1} in the log, found none that is whole"
        end, steps_end = (last.end, last.steps_end) if last is not None else (self.began, self.steps_began)
        bounds = [
            ("committed", committed, self.began, end),
            ("end of the last cursor", cursors_end, 0, end),
            ("oldest", oldest, max(self.began, committed - self.n_slots), end),
            ("intact", intact, 0, oldest),
            ("steps", steps, self.steps_began, steps_end),
        ]
        if last is not None and last.incarnation and last.end <= committed:  # Its cursor was written before.
            ends = self.cursors["end"][self.cursors["incarnation"] == last.incarnation]
            bounds.append(("end of the last batch's cursor", int(ends.max(initial=0)), last.end, 2**63 - 1))
        for name, found, low, high in bounds:
            if not low <= found <= high:
                return f"{name}: expected {low} to {high}, found {found}"
        return None

    def _path_of(self, column: Column) -> Path:
        return self.directory / f"column-{quote(column.name, safe='')}"

    def open_columns(self) -> list[int]:
        """Descriptors of the files of all columns, for writing; they are closed with this object."""
        files = [os.open(self._path_of(column), os.O_WRONLY) for column in self.schema.columns]
        for file in files:
            weakref.finalize(self, os.close, file)
        return files

    def fault_in(self, start: int, rows: int) -> None:
        """Prepare to write many bytes from row ``start`` on into pages that this process has not mapped yet."""
        slot = start % self.n_slots
        for file, column in self._files:
            if rows * column.row_bytes >= LARGE_BYTES:
                fault_in(file, slot * column.row_bytes, (slot + rows) * column.row_bytes)

    def compute_checksum(self, batch: Batch) -> int:
        """The checksum of the bytes that now lie where a batch was stored."""
        return compute_checksum(read_ring(ring, batch.start, batch.end) for ring in self.rings)

    def has_other_rows(self, items: Items, rows: int, incarnation: int, seq: int) -> bool:
        """Whether an actor process has stored other rows than these ``[rows, *shape]`` as its batch number ``seq``.

        False too if nobody can tell any more: the batch has been overwritten, or the log has no record of it.
        """
        batch = self.log.find(incarnation, seq, int(self.header.batches))
        if batch is None or batch.start < self.header.intact:
            return False
        if batch.rows != rows:
            return True
        parts = [items[name] for name in self.columns]
        if self.links is not None:
            parts.append(read_ring(self.links.previous, batch.start, batch.end))
        return compute_checksum(parts) != batch.checksum

    def is_settled(self) -> bool:
        """Whether the bytes are those that were written: nobody copied the files, and no write can be missing.

        The header names the files by their inodes and by ``layout.json``, which is written once. So the header of a
        copy names the files that it was copied from. A write can be missing if the host was restarted or the disk
        mounted again since, unless the files were closed.
        """
        return self.header.place in (self._identify(is_closed=True), self._identify(is_closed=False))

    def _identify(self, *, is_closed: bool) -> int:
        layout = self.directory / "layout.json"
        return identify(layout, this_boot=not is_closed, beside=sorted(self.directory.iterdir()))

    def settle(self) -> None:
        """Note in the header that these files are written in the present boot of the host, and sync it.

        This comes before the first batch: otherwise a power cut could leave new rows under a header that still says
        that the files were closed, and recovery would not compare them with their checksums.

        Raises:
            OSError: it cannot be written.
        """
        self.header.place = self._identify(is_closed=False)
        sync(self.directory / "header")

    def close(self) -> None:
        """Sync all files and note that no process writes them any more, so that a later boot finds them whole.

        Nothing is noted if an earlier ``sync`` failed.

        Raises:
            OSError: they cannot be synced.
        """
        self.sync()
        if self.header.place:
            self.header.place = self._identify(is_closed=True)
            sync(self.directory / "header")

    def sync(self) -> None:
        """Wait until all that has been stored is on disk.

        Linux reports a write that a disk has lost once only, so a later call may succeed. From the first failure on,
        the header names no files, and the next start compares all batches with their checksums.

        Raises:
            OSError: it cannot be written there.
        """
        try:
            for file in self.directory.iterdir():
                sync(file)
            for directory in (self.directory, self.directory.parent):
                sync(directory)
        except OSError:
            self.header.place = 0
            raise
