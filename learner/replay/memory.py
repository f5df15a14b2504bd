"""Memory-mapped columns with one writer and any number of readers. No kill loses an acknowledged item.

Items have absolute indices 0, 1, 2, …; item i lives in slot ``i mod n_slots``. Frames do the same in a ring of their
own. An append writes in this order:

    oldest  →  rows, frames  →  record of the batch  →  batches += 1  →  cursor, frames_end  →  committed = end

A kill -9 between any two steps leaves files that can be opened: once ``batches`` counts the batch, the replay has both
the batch and its cursor; before, it has neither. A reader takes indices in ``[oldest, committed)``, gathers their rows,
and looks at ``oldest`` again: it redraws the rows that were overwritten, or lost a frame, while it gathered them.

``learner.replay.writer`` is the one writer, ``learner.replay.reader`` gathers rows.

A replay with slack has more slots than items that count. So items that fell out of ``[oldest, committed)`` stay in
their slots for a while; ``intact`` is the oldest of them. A process that writes and trains alone can then roll the
replay back to an earlier moment.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from common.data import Array, Items, Schema
from common.errors import ConfigError, RunDirectoryError
from learner.replay.batch_log import RECORD, Batch, BatchLog, choose_length, compute_checksum
from learner.replay.layout import LAYOUT_VERSION, Layout, upgrade_from_layout_2
from learner.replay.ring import FrameRing, map_ring, read_ring
from learner.shared.control import Word, Words
from learner.shared.durable import sync
from learner.shared.mapped import boot_id, map_file

N_CURSORS: Final = 8192
CLOSED: Final = -1
CURSOR: Final = np.dtype([("incarnation", "<u8"), ("seq", "<u8"), ("end", "<i8"), ("frames_end", "<i8")])
"""An actor process, the seq of its newest batch, and where items and frames end with that batch."""


class _Header(Words):
    N_WORDS = 8
    oldest = Word(0)
    """Absolute index of the oldest item that counts."""
    committed = Word(1)
    """Items ever stored; the absolute index of the next one."""
    journal_end = Word(2)
    """Of layout 2 only."""
    frames_end = Word(3)
    """Frames ever stored; the number of the next one."""
    intact = Word(4)
    """Absolute index of the oldest item that has not been overwritten; at most ``oldest``."""
    batches = Word(5)
    """Batches ever stored; the number of the next one."""
    boot = Word(6)
    """The boot of the host in which the files are written, see ``boot_id``; ``CLOSED``: no process writes them."""


class ReplayMemory:
    """The files of one replay: ``layout.json``, ``header``, ``cursors``, ``batches``, a file per column, and frames.

    Files of layout 2 (release 0.1) have no ``batches``: they are upgraded when they are opened for writing.

    Args:
        directory: where the files are.
        schema: columns of an item; columns of frames are stored packed.
        capacity: items kept.
        create: make new files; otherwise open existing ones.
        frame_capacity: frames kept, where the schema has any.
        slack: slots beyond ``capacity`` in new files, with as much room for frames; existing files keep their slack.
        began: absolute index of the first item of new files; existing files know their own.
        writable: otherwise they are opened for reading only.
        checked: refuse a header that contradicts the other files; otherwise the caller asks ``learner.replay.recovery``
            which items are whole before it reads or writes any.

    Raises:
        RunDirectoryError: the files cannot be made or opened, have another layout, or contradict one another.
        SchemaMismatchError: the files hold other columns, or more or fewer items or frames.
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
        began: int = 0,
        writable: bool = True,
        checked: bool = True,
    ) -> None:
        self.directory = directory
        self.schema = schema
        self.capacity = capacity
        if frame_capacity < 2 * schema.max_frames:
            raise ConfigError(f"replay: expected room for {2 * schema.max_frames} frames, found {frame_capacity}")
        self.max_rows = min(capacity, frame_capacity // (2 * schema.max_frames)) if schema.frame else capacity
        """The most rows in one batch: there is room for all their frames and for as many earlier frames."""
        layout = Layout(schema, capacity, frame_capacity if schema.frame else 0, slack, began)
        if create:
            directory.mkdir(parents=True)
        else:
            found = Layout.read(directory)
            layout.require_same(found, directory)
            layout = found
        self.slack, self.began = layout.slack, layout.began
        self.n_slots = capacity + layout.slack
        self.excluded: Array = np.empty(0, np.int64)
        """Absolute indices that are never drawn, ``[n]`` int64, sorted; see ``exclude``."""
        self._map_files(layout, create=create, writable=writable)
        if create:
            self.header.oldest = self.header.intact = self.header.committed = began
            self.header.boot = boot_id()
            self.sync()
            layout.write(directory)  # Last: a directory with ``layout.json`` has all files.
            return
        if (checked or not self.log.length) and (problem := self.find_problem()):
            raise RunDirectoryError(f"{directory / 'header'}: {problem}")
        if writable and not self.log.length:
            self._upgrade(layout)

    def _map_files(self, layout: Layout, *, create: bool, writable: bool) -> None:
        directory = self.directory
        mapped = partial(map_file, create=create, writable=writable)
        self.header = _Header(mapped(directory / "header", 8 * _Header.N_WORDS), 0, _Header.N_WORDS)
        table = np.frombuffer(mapped(directory / "cursors", CURSOR.itemsize * (N_CURSORS + 1)), CURSOR)
        self.journal, self.cursors = table[:1], table[1:]  # The journal is of layout 2 only.
        self.columns: Items = {
            c.name: map_ring(mapped, directory / f"column-{c.name}", c.packed, self.n_slots)
            for c in self.schema.columns
        }
        self.frames: FrameRing | None = None
        if self.schema.frame is not None:
            room = {"n_slots": layout.frame_capacity * self.n_slots // self.capacity, "n_rows": self.n_slots}
            self.frames = FrameRing(mapped, directory, self.schema.frame, capacity=layout.frame_capacity, **room)
        has_log = layout.version >= LAYOUT_VERSION
        self.log = BatchLog(mapped(directory / "batches", self._log_bytes) if has_log else None)

    @property
    def _log_bytes(self) -> int:
        return RECORD.itemsize * choose_length(self.n_slots)

    def _upgrade(self, layout: Layout) -> None:
        """Make the log of files of layout 2. ``layout.json`` is written last: until then they stay of layout 2."""
        path = self.directory / "batches"
        path.unlink(missing_ok=True)  # An upgrade that was killed may have left this file.
        self.log = BatchLog(map_file(path, self._log_bytes, create=True))
        upgrade_from_layout_2(self)
        self.header.boot = boot_id()
        self.sync()
        layout.write(self.directory)

    @classmethod
    def open_saved(cls, directory: Path) -> ReplayMemory:
        """Open existing files for reading only, with the columns and the room that their layout names.

        Raises:
            RunDirectoryError: the files cannot be opened, or have another layout.
        """
        layout = Layout.read(directory)
        frames = layout.frame_capacity
        return cls(directory, layout.schema, layout.capacity, create=False, frame_capacity=frames, writable=False)

    @property
    def n_bytes(self) -> int:
        """Bytes allocated for items and their frames."""
        return sum(c.nbytes for c in self.columns.values()) + (self.frames.n_bytes if self.frames is not None else 0)

    @property
    def committed(self) -> int:
        """Items ever stored; the absolute index of the next one."""
        return int(self.header.committed)

    @property
    def frames_stored(self) -> int:
        """Frames ever stored; the number of the next one."""
        return int(self.header.frames_end)

    def __len__(self) -> int:
        return max(0, self.committed - self.first())

    def first(self) -> int:
        """Absolute index of the oldest item that counts."""
        return int(self.header.oldest)

    def exclude(self, indices: Array) -> None:
        """Never draw the items with these absolute indices ``[n]`` again, in this process. They should be few."""
        self.excluded = np.union1d(self.excluded, indices.astype(np.int64))

    def count_excluded(self, first: int, end: int) -> int:
        """How many of the items with absolute indices in ``[first, end)`` are excluded."""
        excluded = self.excluded
        return int(np.diff(np.searchsorted(excluded, (first, end)))[0]) if len(excluded) else 0

    def is_excluded(self, indices: Array) -> Array:
        """Which of these absolute indices ``[n]`` are excluded, ``[n]`` bool."""
        return np.isin(indices, self.excluded)

    def find_origins(self, indices: Array) -> Array:
        """The incarnations of the actor processes that sent the items of these absolute indices ``[n]``.

        Returns:
            ``[n]`` uint64; 0 where it is not known: the item is gone, or older than the oldest record in the log.
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

        A writer may be storing batches meanwhile, and every figure only grows. So each figure is read before the
        figures that bound it from above: a batch that is stored in between raises the bounds and breaks none of them.
        """
        cursors_end = int(self.cursors["end"].max(initial=0))
        intact, committed, oldest = (int(getattr(self.header, name)) for name in ("intact", "committed", "oldest"))
        end = self._find_logged_end()
        if end is None:
            return f"expected the record of batch {int(self.header.batches) - 1} in the log, found none that is whole"
        bounds = [
            ("committed", committed, self.began, end),
            ("end of the last cursor", cursors_end, 0, end),
            ("oldest", oldest, max(self.began, committed - self.n_slots), end),
            ("intact", intact, 0, oldest),
        ]
        last = self.read_last_batch()
        if last is not None and last.incarnation and last.end <= committed:  # Its cursor was written before.
            ends = self.cursors["end"][self.cursors["incarnation"] == last.incarnation]
            bounds.append(("end of the last batch's cursor", int(ends.max(initial=0)), last.end, 2**63 - 1))
        for name, found, low, high in bounds:
            if not low <= found <= high:
                return f"{name}: expected {low} to {high}, found {found}"
        return None

    def _find_logged_end(self) -> int | None:
        """Where items end by the last record of the log, or by the journal of layout 2; None if it is damaged."""
        if not self.log.length:
            return max(int(self.header.committed), int(self.header.journal_end))
        last = self.read_last_batch()
        if last is not None:
            return last.end
        return None if self.header.batches else self.began

    def compute_checksum(self, batch: Batch) -> int:
        """The checksum of the bytes that now lie where a batch was stored."""
        parts = [read_ring(column, batch.start, batch.end) for column in self.columns.values()]
        if self.frames is not None:
            parts.append(read_ring(self.frames.bases, batch.start, batch.end))
            parts.append(read_ring(self.frames.frames, batch.frames_start, batch.frames_end))
        return compute_checksum(parts)

    def is_settled(self) -> bool:
        """Whether no write can be missing: the files were closed, or written in the present boot of the host."""
        return self.header.boot in (CLOSED, boot_id())

    def settle(self) -> None:
        """Note in the header that the present boot of the host writes the files, and sync it.

        This comes before the first batch: otherwise a power cut could leave new items under a header that still says
        ``CLOSED``, and recovery would not compare them with their checksums.

        Raises:
            OSError: it cannot be written.
        """
        self.header.boot = boot_id()
        sync(self.directory / "header")

    def close(self) -> None:
        """Sync all files and note that no process writes them any more, so that any later boot finds them whole.

        Raises:
            OSError: they cannot be synced.
        """
        self.sync()
        self.header.boot = CLOSED
        sync(self.directory / "header")

    def sync(self) -> None:
        """Wait until all that has been stored is on disk.

        Raises:
            OSError: it cannot be written there.
        """
        for file in self.directory.iterdir():
            sync(file)
        for directory in (self.directory, self.directory.parent):
            sync(directory)
