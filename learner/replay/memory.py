"""Memory-mapped columns with one writer and any number of readers. Acknowledged means kept.

Items have absolute indices 0, 1, 2, …; item i lives in slot ``i mod capacity``. An append goes

    reserved = end  →  rows  →  journal (cursor, end)  →  journal_end = end  →  cursor  →  committed = end

and a kill -9 anywhere leaves a state that opens well: from ``journal_end`` on the batch and its cursor count, before
it neither does. A reader takes indices in ``[reserved - capacity, committed)``, gathers, and looks at ``reserved``
again: rows overwritten meanwhile are drawn again.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from common.data import Array, Items, Schema
from common.errors import RunDirectoryError, SchemaMismatchError
from learner.shared import Word, Words, fence, map_file

LAYOUT_VERSION: Final = 1
N_CURSORS: Final = 8192
_CURSOR = np.dtype([("incarnation", "<u8"), ("seq", "<u8"), ("end", "<i8")])


class _Header(Words):
    N_WORDS = 8
    reserved = Word(0)
    committed = Word(1)
    journal_end = Word(2)


class ReplayMemory:
    """The mapped files of one replay: ``layout.json``, ``header``, ``cursors`` and one file per column.

    Args:
        directory: where the files are.
        schema: columns of an item.
        capacity: items kept.
        create: make new files; otherwise open existing ones.
        writable: otherwise they are opened for reading only.

    Raises:
        RunDirectoryError: the files cannot be made or opened, or have another layout.
        SchemaMismatchError: the files hold other columns.
    """

    def __init__(self, directory: Path, schema: Schema, capacity: int, *, create: bool, writable: bool = True) -> None:
        self.schema = schema
        self.capacity = capacity
        layout = {"version": LAYOUT_VERSION, "capacity": capacity, "schema": schema.to_json()}
        if create:
            directory.mkdir(parents=True)
            (directory / "layout.json").write_text(json.dumps(layout))
        else:
            _check_layout(directory, layout)
        mapped = partial(map_file, create=create, writable=writable)
        header = mapped(directory / "header", 8 * _Header.N_WORDS)
        self.header = _Header(header, 0, _Header.N_WORDS)
        cursors = mapped(directory / "cursors", _CURSOR.itemsize * (N_CURSORS + 1))
        table = np.frombuffer(cursors, _CURSOR)
        self.journal, self.cursors = table[:1], table[1:]
        self.columns: Items = {}
        for c in schema.columns:
            file = mapped(directory / f"column-{c.name}", capacity * c.row_bytes)
            self.columns[c.name] = np.frombuffer(file, c.dtype).reshape(capacity, *c.shape)

    @classmethod
    def saved(cls, directory: Path) -> ReplayMemory:
        """Open the files as they are, for reading only.

        Raises:
            RunDirectoryError: the files cannot be opened, or have another layout.
        """
        layout = _read_layout(directory)
        schema = Schema.from_json(layout["schema"])
        return cls(directory, schema, layout["capacity"], create=False, writable=False)

    @property
    def committed(self) -> int:
        """Items ever stored; the absolute index of the next one."""
        return int(self.header.committed)

    def __len__(self) -> int:
        return max(0, self.committed - self.first())

    def first(self) -> int:
        """Absolute index of the oldest item that is whole."""
        return max(0, int(self.header.reserved) - self.capacity)


def _read_layout(directory: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((directory / "layout.json").read_text())
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{directory}: no readable replay memory: {error}") from error
    if found["version"] != LAYOUT_VERSION:
        raise RunDirectoryError(f"{directory}: expected layout {LAYOUT_VERSION}, found {found['version']}")
    return found


def _check_layout(directory: Path, expected: dict[str, Any]) -> None:
    found = _read_layout(directory)
    here, there = Schema.from_json(expected["schema"]), Schema.from_json(found["schema"])
    here.require_equal(there, "this run", f"replay in {directory}")
    if found["capacity"] != expected["capacity"]:
        raise SchemaMismatchError(f"{directory}: expected capacity {expected['capacity']}, found {found['capacity']}")


class ReplayWriter:
    """The single writer. Opening one finishes or discards what a killed writer had begun."""

    def __init__(self, memory: ReplayMemory) -> None:
        self._memory = memory
        self._header = memory.header
        self._recover()
        self._slots = {int(row["incarnation"]): i for i, row in enumerate(memory.cursors) if row["incarnation"]}

    def _recover(self) -> None:
        journal_end = int(self._header.journal_end)
        if journal_end > self._memory.committed:
            record = self._memory.journal[0]
            self._memory.cursors[self._slot_in_table(int(record["incarnation"]))] = record
            self._header.committed = journal_end

    def _slot_in_table(self, incarnation: int) -> int:
        """The cursor of an incarnation, or the one unused for longest."""
        known = np.flatnonzero(self._memory.cursors["incarnation"] == incarnation)
        return int(known[0]) if len(known) else int(self._memory.cursors["end"].argmin())

    def last_seq(self, incarnation: int) -> int:
        """Highest seq of an incarnation that is stored; 0 for an unknown one."""
        slot = self._slots.get(incarnation)
        return 0 if slot is None else int(self._memory.cursors["seq"][slot])

    def append(self, items: Items, rows: int, incarnation: int, seq: int) -> None:
        """Store a batch and its cursor, both or neither.

        The items must fit the schema and be no more than the capacity; ``seq`` must follow ``last_seq``.
        """
        start = self._memory.committed
        end = start + rows
        self._header.reserved = max(end, int(self._header.reserved))
        fence()
        for name, column in self._memory.columns.items():
            _write_ring(column, items[name], start)
        record = self._memory.journal[0]
        record["incarnation"], record["seq"], record["end"] = incarnation, seq, end
        fence()
        self._header.journal_end = end
        slot = self._slots.get(incarnation)
        if slot is None:
            slot = self._take_slot(incarnation)
        self._memory.cursors[slot] = record
        fence()
        self._header.committed = end

    def _take_slot(self, incarnation: int) -> int:
        slot = self._slot_in_table(incarnation)
        self._slots.pop(int(self._memory.cursors["incarnation"][slot]), None)
        self._slots[incarnation] = slot
        return slot


def _write_ring(column: Array, rows: Array, start: int) -> None:
    """Write rows, at most one round of them, at absolute index ``start``."""
    slot = start % len(column)
    until_end = min(len(rows), len(column) - slot)
    column[slot : slot + until_end] = rows[:until_end]
    column[: len(rows) - until_end] = rows[until_end:]
