"""Memory-mapped columns with one writer and any number of readers. Acknowledged means kept.

Items have absolute indices 0, 1, 2, …; item i lives in slot ``i mod n_slots``. Frames likewise, in a ring of their
own. An append goes

    oldest  →  rows, frames  →  journal (cursor, ends)  →  journal_end = end  →  cursor, frames_end  →  committed = end

and a kill -9 anywhere leaves a state that opens well: from ``journal_end`` on the batch and its cursor count, before
it neither does. A reader takes indices in ``[oldest, committed)``, gathers, and looks at ``oldest`` again: rows that
were overwritten meanwhile, or a frame of theirs, are drawn again.

With slack, more slots than items that count, what fell out of ``[oldest, committed)`` lies there for a while, from
``intact`` on: so a writer that is its own and only actor can be rolled back to where it was.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from common.data import Items, Schema
from common.errors import ConfigError, RunDirectoryError, SchemaMismatchError
from common.frames import Packed, Packer
from learner.replay.frames import FrameStore
from learner.replay.ring import map_ring, read_ring, write_ring
from learner.shared import Word, Words, fence, map_file

log = logging.getLogger(__name__)
LAYOUT_VERSION: Final = 2
N_CURSORS: Final = 8192
BEGINNING: Final = {"oldest": 0, "end": 0, "frames_end": 0, "back": 0}
"""``ReplayWriter.mark()`` of an empty memory."""
_CURSOR = np.dtype([("incarnation", "<u8"), ("seq", "<u8"), ("end", "<i8"), ("frames_end", "<i8")])


class _Header(Words):
    N_WORDS = 8
    oldest = Word(0)
    committed = Word(1)
    journal_end = Word(2)
    frames_end = Word(3)
    intact = Word(4)


class ReplayMemory:
    """The mapped files of one replay: ``layout.json``, ``header``, ``cursors``, one file per column, and the frames.

    Args:
        directory: where the files are.
        schema: columns of an item; those of frames are stored packed.
        capacity: items kept.
        create: make new files; otherwise open existing ones.
        frame_capacity: frames kept, where the schema has any.
        slack: slots beyond ``capacity`` in new files, with as much room for frames; existing files have what they have.
        writable: otherwise they are opened for reading only.

    Raises:
        RunDirectoryError: the files cannot be made or opened, or have another layout.
        SchemaMismatchError: the files hold other columns, or more or less of them.
        ConfigError: there is no room for the frames of one item.
    """

    def __init__(
        self,
        directory: Path,
        schema: Schema,
        capacity: int,
        *,
        create: bool,
        frame_capacity: int = 0,
        slack: int = 0,
        writable: bool = True,
    ) -> None:
        self.schema = schema
        self.capacity = capacity
        if frame_capacity < 2 * schema.max_frames:
            raise ConfigError(f"replay: expected room for {2 * schema.max_frames} frames, found {frame_capacity}")
        self.max_rows = min(capacity, frame_capacity // (2 * schema.max_frames)) if schema.frame else capacity
        """Rows in one batch, at most: their frames must fit, all different, and as many to which they reach back."""
        layout: dict[str, Any] = {"version": LAYOUT_VERSION, "schema": schema.to_json(), "capacity": capacity}
        if schema.frame is not None:
            layout["frame_capacity"] = frame_capacity
        if create:
            directory.mkdir(parents=True)
            (directory / "layout.json").write_text(json.dumps({**layout, "slack": slack}))
        else:
            slack = _check_layout(directory, layout)
        self.slack = slack
        self.n_slots = capacity + slack
        mapped = partial(map_file, create=create, writable=writable)
        header = mapped(directory / "header", 8 * _Header.N_WORDS)
        self.header = _Header(header, 0, _Header.N_WORDS)
        cursors = mapped(directory / "cursors", _CURSOR.itemsize * (N_CURSORS + 1))
        table = np.frombuffer(cursors, _CURSOR)
        self.journal, self.cursors = table[:1], table[1:]
        self.columns: Items = {
            c.name: map_ring(mapped, directory / f"column-{c.name}", c.packed, self.n_slots) for c in schema.columns
        }
        self.frames: FrameStore | None = None
        if schema.frame is not None:
            room = {"n_slots": frame_capacity * self.n_slots // capacity, "n_rows": self.n_slots}
            self.frames = FrameStore(mapped, directory, schema.frame, capacity=frame_capacity, **room)

    @classmethod
    def saved(cls, directory: Path) -> ReplayMemory:
        """Open the files as they are, for reading only.

        Raises:
            RunDirectoryError: the files cannot be opened, or have another layout.
        """
        layout = _read_layout(directory)
        schema = Schema.from_json(layout["schema"])
        frame_capacity = layout.get("frame_capacity", 0)
        return cls(directory, schema, layout["capacity"], create=False, frame_capacity=frame_capacity, writable=False)

    @property
    def n_bytes(self) -> int:
        """Bytes allocated for items and their frames."""
        return sum(c.nbytes for c in self.columns.values()) + (self.frames.n_bytes if self.frames is not None else 0)

    @property
    def committed(self) -> int:
        """Items ever stored; the absolute index of the next one."""
        return int(self.header.committed)

    def __len__(self) -> int:
        return max(0, self.committed - self.first())

    def first(self) -> int:
        """Absolute index of the oldest item that is whole."""
        return int(self.header.oldest)


def _read_layout(directory: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((directory / "layout.json").read_text())
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{directory}: no readable replay memory: {error}") from error
    if found["version"] != LAYOUT_VERSION:
        raise RunDirectoryError(f"{directory}: expected layout {LAYOUT_VERSION}, found {found['version']}")
    return found


def _check_layout(directory: Path, expected: dict[str, Any]) -> int:
    """See that files are of this layout; the slack they were made with."""
    found = _read_layout(directory)
    here, there = Schema.from_json(expected["schema"]), Schema.from_json(found["schema"])
    here.require_equal(there, "this run", f"replay in {directory}")
    for name in ("capacity", "frame_capacity"):
        if found.get(name) != expected.get(name):
            raise SchemaMismatchError(f"{directory}: expected {name} {expected.get(name)}, found {found.get(name)}")
    slack: int = found.get("slack", 0)
    return slack


class ReplayWriter:
    """The single writer. Opening one finishes or discards what a killed writer had begun."""

    def __init__(self, memory: ReplayMemory) -> None:
        self._memory = memory
        self._header = memory.header
        self._packer = Packer(memory.schema)
        self._has_warned = False
        self._recover()
        self._slots = {int(row["incarnation"]): i for i, row in enumerate(memory.cursors) if row["incarnation"]}

    def _recover(self) -> None:
        journal_end = int(self._header.journal_end)
        if journal_end > self._memory.committed:
            record = self._memory.journal[0]
            self._memory.cursors[self._slot_in_table(int(record["incarnation"]))] = record
            self._header.frames_end = record["frames_end"]
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
        """Store a batch and its cursor, both or neither; of frames only what goes on from the batch before.

        The items must fit the schema and be no more than ``max_rows``; ``seq`` must follow ``last_seq``.
        """
        self._store(self._packer.pack(items, rows), incarnation, seq)

    def append_packed(self, batch: Packed, incarnation: int, seq: int) -> None:
        """Store a batch that refers to no frames but its own; otherwise as ``append``."""
        self._packer = Packer(self._memory.schema)  # What it packed last is no longer the batch before.
        self._store(batch, incarnation, seq)

    def mark(self) -> dict[str, Any]:
        """The present end, as plain values, for ``roll_back``."""
        return {
            "oldest": self._memory.first(),
            "end": self._memory.committed,
            "frames_end": int(self._header.frames_end),
            "back": self._packer.back,
        }

    def roll_back(self, mark: Mapping[str, Any], incarnation: int) -> bool:
        """Forget what this incarnation has stored since ``mark()``, for which nobody else may be reading or writing.

        Returns:
            False, and nothing is forgotten, if there is more of others, or less than there was, or items that counted
            then have been overwritten.
        """
        memory, header = self._memory, self._header
        oldest, end, frames_end = mark["oldest"], mark["end"], mark["frames_end"]
        others = memory.cursors["end"][memory.cursors["incarnation"] != incarnation].max(initial=0)
        is_whole = header.intact <= oldest or oldest == end
        if not (is_whole and others <= end <= memory.committed):
            return False
        header.journal_end = header.committed = end  # In this order: a kill between them must not look like an append.
        header.frames_end = frames_end
        header.oldest = header.intact = oldest
        before = b""
        if memory.frames is not None:
            before = read_ring(memory.frames.frames, frames_end - mark["back"], frames_end).tobytes()
        self._packer = Packer(memory.schema, before)
        return True

    def _store(self, batch: Packed, incarnation: int, seq: int) -> None:
        assert batch.rows <= self._memory.max_rows, f"{batch.rows} rows in a batch of {self._memory.max_rows} at most"
        start, number = self._memory.committed, int(self._header.frames_end)
        end, frames_end = start + batch.rows, number + len(batch.frames)
        self._give_up(end, frames_end)
        fence()
        for name, column in self._memory.columns.items():
            write_ring(column, batch.columns[name], start)
        if self._memory.frames is not None:
            self._memory.frames.write(batch.frames, number, start, batch.rows, batch.back)
        record = self._memory.journal[0]
        record["incarnation"], record["seq"], record["end"], record["frames_end"] = incarnation, seq, end, frames_end
        fence()
        self._header.journal_end = end
        slot = self._slots.get(incarnation)
        if slot is None:
            slot = self._take_slot(incarnation)
        self._memory.cursors[slot] = record
        self._header.frames_end = frames_end
        fence()
        self._header.committed = end

    def _give_up(self, end: int, frames_end: int) -> None:
        """Publish what stays whole when rows and frames up to these ends are written."""
        memory, frames = self._memory, self._memory.frames
        oldest = max(memory.first(), end - memory.capacity)
        intact = max(int(self._header.intact), end - memory.n_slots)
        if frames is not None:
            whole = frames.first_row_since(frames_end - frames.capacity, oldest, memory.committed)
            if whole > oldest:
                self._warn_once(end - whole, frames_end / end)
            oldest = whole
            intact = frames.first_row_since(frames_end - len(frames.frames), intact, memory.committed)
        self._header.oldest, self._header.intact = oldest, intact

    def _warn_once(self, n_kept: int, frames_per_item: float) -> None:
        if not self._has_warned:
            self._has_warned = True
            advice = "replay: room for the frames of %d of %d items only: replay.frames_per_item should be above %.2f"
            log.warning(advice, n_kept, self._memory.capacity, frames_per_item)

    def _take_slot(self, incarnation: int) -> int:
        slot = self._slot_in_table(incarnation)
        self._slots.pop(int(self._memory.cursors["incarnation"][slot]), None)
        self._slots[incarnation] = slot
        return slot
