"""Memory-mapped columns with one writer and any number of readers. Acknowledged means kept.

Items have absolute indices 0, 1, 2, …; item i lives in slot ``i mod n_slots``. Frames likewise, in a ring of their
own. An append goes

    oldest  →  rows, frames  →  record of the batch  →  batches += 1  →  cursor, frames_end  →  committed = end

and a kill -9 anywhere leaves a state that opens well: once ``batches`` counts the batch, both it and its cursor count;
before, neither does. A reader takes indices in ``[oldest, committed)``, gathers, and looks at ``oldest`` again: it
draws anew where a row, or a frame of a row, was overwritten meanwhile.

With slack, more slots than items that count, what fell out of ``[oldest, committed)`` lies there for a while, from
``intact`` on: so a writer that is its own and only actor can be rolled back to where it was.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from common.data import Array, Items, Schema
from common.errors import ConfigError, CrossborderError, RunDirectoryError
from common.wire.frames import Packed, Packer
from learner.replay.batch_log import RECORD, Batch, BatchLog, content_checksum, n_records
from learner.replay.frame_ring import FrameStore
from learner.replay.layout import LAYOUT_VERSION, Layout
from learner.replay.ring import map_ring, read_ring, write_ring
from learner.replay.upgrade import upgrade
from learner.shared.control import Word, Words
from learner.shared.durable import sync
from learner.shared.mapped import boot_id, fence, map_file

log = logging.getLogger(__name__)
N_CURSORS: Final = 8192
CLOSED: Final = -1
CURSOR: Final = np.dtype([("incarnation", "<u8"), ("seq", "<u8"), ("end", "<i8"), ("frames_end", "<i8")])


class CursorsFullError(CrossborderError):
    """There is no cursor for another actor process: all belong to processes that may still send a batch again."""


class _Header(Words):
    N_WORDS = 8
    oldest = Word(0)
    committed = Word(1)
    journal_end = Word(2)
    """Of layout 2 only."""
    frames_end = Word(3)
    intact = Word(4)
    batches = Word(5)
    """Batches ever stored; the number of the next one."""
    boot = Word(6)
    """The boot of the host in which the files are written, see ``boot_id``; ``CLOSED``: in none."""


class ReplayMemory:
    """The files of one replay: ``layout.json``, ``header``, ``cursors``, ``batches``, a file per column, and frames.

    Files of layout 2 (release 0.1) have no ``batches``: they are upgraded when they are opened for writing.

    Args:
        directory: where the files are.
        schema: columns of an item; those of frames are stored packed.
        capacity: items kept.
        create: make new files; otherwise open existing ones.
        frame_capacity: frames kept, where the schema has any.
        slack: slots beyond ``capacity`` in new files, with as much room for frames; existing files have what they have.
        began: absolute index of the first item of new files; existing files know their own.
        writable: otherwise they are opened for reading only.
        checked: refuse a header that cannot be; otherwise ``learner.replay.recovery`` has to look at it.

    Raises:
        RunDirectoryError: the files cannot be made or opened, have another layout, or a header that cannot be.
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
        """Rows in one batch, at most: their frames must fit, all different, and as many to which they reach back."""
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
            layout.write(directory)  # Last: where there is a layout, all files are.
            return
        if checked or not self.log.length:
            self._require_header()
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
        self.frames: FrameStore | None = None
        if self.schema.frame is not None:
            room = {"n_slots": layout.frame_capacity * self.n_slots // self.capacity, "n_rows": self.n_slots}
            self.frames = FrameStore(mapped, directory, self.schema.frame, capacity=layout.frame_capacity, **room)
        has_log = layout.version >= LAYOUT_VERSION
        self.log = BatchLog(mapped(directory / "batches", self._log_bytes) if has_log else None)

    @property
    def _log_bytes(self) -> int:
        return RECORD.itemsize * n_records(self.n_slots)

    def _upgrade(self, layout: Layout) -> None:
        """Make a log for files that have none; they are of layout 3 only when it is written."""
        path = self.directory / "batches"
        path.unlink(missing_ok=True)  # Of an upgrade that was killed.
        self.log = BatchLog(map_file(path, self._log_bytes, create=True))
        upgrade(self)
        self.header.boot = boot_id()
        self.sync()
        layout.write(self.directory)

    def _require_header(self) -> None:
        if problem := self.problem():
            raise RunDirectoryError(f"{self.directory / 'header'}: {problem}")

    @classmethod
    def saved(cls, directory: Path) -> ReplayMemory:
        """Open the files as they are, for reading only.

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

    def __len__(self) -> int:
        return max(0, self.committed - self.first())

    def first(self) -> int:
        """Absolute index of the oldest item that is whole."""
        return int(self.header.oldest)

    def exclude(self, indices: Array) -> None:
        """Never draw these items again, by absolute index ``[n]``; known to this process only. They should be few."""
        self.excluded = np.union1d(self.excluded, indices.astype(np.int64))

    def n_excluded(self, first: int, end: int) -> int:
        """How many items with absolute indices in ``[first, end)`` are never to be drawn."""
        excluded = self.excluded
        return int(np.diff(np.searchsorted(excluded, (first, end)))[0]) if len(excluded) else 0

    def is_excluded(self, indices: Array) -> Array:
        """Which of these absolute indices ``[n]`` are never to be drawn, bool ``[n]``."""
        return np.isin(indices, self.excluded)

    def origins(self, indices: Array) -> Array:
        """The incarnations of the actor processes that made the items of these absolute indices ``[n]``.

        Returns:
            ``[n]`` uint64; 0 where it is not known: the item is gone, or older than the record of its batch.
        """
        known = self.log.newest(int(self.header.batches))
        if not len(known):
            return np.zeros(len(indices), np.uint64)
        at = np.searchsorted(known["start"], indices, side="right") - 1
        batch = known[np.maximum(at, 0)]
        is_there = (at >= 0) & (indices - batch["start"] < batch["rows"])
        return np.where(is_there, batch["incarnation"], 0).astype(np.uint64)

    def last_batch(self) -> Batch | None:
        """The batch that was stored last; None if there is none, or its record is not whole."""
        return self.log.read(int(self.header.batches) - 1)

    def problem(self) -> str | None:
        """What about the header cannot be, with expected and found; None if nothing.

        A writer may be going on meanwhile. So each figure is read before those that bound it from above.
        """
        cursors_end = int(self.cursors["end"].max(initial=0))
        intact, committed, oldest = (int(getattr(self.header, name)) for name in ("intact", "committed", "oldest"))
        end = self._logged_end()
        if end is None:
            return f"expected the record of batch {int(self.header.batches) - 1} in the log, found none that is whole"
        bounds = (
            ("committed", committed, self.began, end),
            ("end of the last cursor", cursors_end, 0, end),
            ("oldest", oldest, max(self.began, committed - self.n_slots), end),
            ("intact", intact, 0, oldest),
            ("end of the last batch's cursor", *self._last_cursor(committed)),
        )
        for name, found, low, high in bounds:
            if not low <= found <= high:
                return f"{name}: expected {low} to {high}, found {found}"
        return None

    def _last_cursor(self, committed: int) -> tuple[int, int, int]:
        """The end of the cursor of whom stored the last of ``committed`` items, and its bounds."""
        last = self.last_batch()
        if last is None or not last.incarnation or last.end > committed:
            return 0, 0, 0
        ends = self.cursors["end"][self.cursors["incarnation"] == last.incarnation]
        return int(ends.max(initial=0)), last.end, 2**63 - 1

    def _logged_end(self) -> int | None:
        """The end of all items by the log; None if its last record is missing. A log of layout 2 knows of none."""
        if not self.log.length:
            return max(int(self.header.committed), int(self.header.journal_end))
        last = self.last_batch()
        return last.end if last is not None else None if self.header.batches else self.began

    def whole_since(self, first: int, end: int, frames_end: int) -> tuple[int, int]:
        """The oldest item that counts, and the first that is intact, when items and frames up to these ends are there.

        Args:
            first: the first item that is whole; it and those that follow lose their frames in their order.
            end: of the items.
            frames_end: of the frames.
        """
        oldest, intact = max(first, end - self.capacity), max(first, end - self.n_slots)
        if self.frames is None:
            return oldest, intact
        frames = self.frames
        return (
            frames.first_row_since(frames_end - frames.capacity, oldest, end),
            frames.first_row_since(frames_end - len(frames.frames), intact, end),
        )

    def checksum(self, batch: Batch) -> int:
        """That of what now lies where a batch was stored."""
        parts = [read_ring(column, batch.start, batch.end) for column in self.columns.values()]
        if self.frames is not None:
            parts.append(read_ring(self.frames.bases, batch.start, batch.end))
            parts.append(read_ring(self.frames.frames, batch.frames_start, batch.frames_end))
        return content_checksum(parts)

    def is_settled(self) -> bool:
        """Whether processes see all that was written: no other boot of the host came after the last batch."""
        return self.header.boot in (CLOSED, boot_id())

    def settle(self) -> None:
        """Say that all is on disk, and that what follows is written in the present boot of the host.

        Raises:
            OSError: it cannot be written.
        """
        self.header.boot = boot_id()
        sync(self.directory / "header")  # Before anything is written: no later power cut must leave ``CLOSED`` there.

    def close(self) -> None:
        """Nobody writes any more: sync all, so that it is whole in whatever boot of the host it is opened.

        Raises:
            OSError: it cannot be synced.
        """
        self.sync()
        self.header.boot = CLOSED
        sync(self.directory / "header")

    def sync(self) -> None:
        """Wait until everything that has been stored is on disk.

        Raises:
            OSError: it cannot be.
        """
        for file in self.directory.iterdir():
            sync(file)
        for directory in (self.directory, self.directory.parent):
            sync(directory)


class ReplayWriter:
    """The single writer. Opening one finishes or discards the batch that a killed writer had begun.

    Args:
        memory: opened for writing.
        is_gone: whether the actor process of an incarnation will never send anything again. None: nobody knows.
    """

    def __init__(self, memory: ReplayMemory, is_gone: Callable[[int], bool] | None = None) -> None:
        self._memory = memory
        self._header = memory.header
        self._is_gone = is_gone or _is_not_known_to_be_gone
        self._packer = Packer(memory.schema)
        self._has_warned = False
        self._recover()
        self._slots = {int(row["incarnation"]): i for i, row in enumerate(memory.cursors) if row["incarnation"]}

    def _recover(self) -> None:
        """Finish the last batch: it counts, but a kill may have come before its cursor and the ends."""
        last = self._memory.last_batch()
        if last is not None and last.end > self._memory.committed:
            incarnations = self._memory.cursors["incarnation"]
            slots = *np.flatnonzero(incarnations == last.incarnation), *np.flatnonzero(incarnations == 0)
            self._finish(last, int(slots[0]))  # There is one: the slot was freed before the batch was stored.

    def last_seq(self, incarnation: int) -> int:
        """Highest seq of an incarnation that is stored; 0 for an unknown one."""
        slot = self._slots.get(incarnation)
        return 0 if slot is None else int(self._memory.cursors["seq"][slot])

    def append(self, items: Items, rows: int, incarnation: int, seq: int) -> None:
        """Store a batch and its cursor, both or neither; of frames only what goes on from the batch before.

        The items must fit the schema and be no more than ``max_rows``; ``seq`` must follow ``last_seq``.

        Raises:
            CursorsFullError: nothing was stored, see ``require_cursor``.
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
        if end == memory.committed:
            is_whole &= frames_end == header.frames_end  # A copy of a replay numbers its frames anew.
        if not (is_whole and others <= end <= memory.committed):
            return False
        # A kill before ``batches`` is lowered undoes all of this: the last batch looks as if it had to be finished.
        number = self._number_at(end)
        own = memory.cursors["incarnation"] == incarnation
        memory.cursors["end"][own] = np.minimum(memory.cursors["end"][own], end)
        header.oldest = oldest
        header.committed = end
        header.batches = number
        header.frames_end = frames_end
        header.intact = oldest
        memory.log.keep(0, number)
        memory.excluded = memory.excluded[memory.excluded < end]
        before = b""
        if memory.frames is not None:
            before = read_ring(memory.frames.frames, frames_end - mark["back"], frames_end).tobytes()
        self._packer = Packer(memory.schema, before)
        return True

    def _number_at(self, end: int) -> int:
        """The number of the first batch that begins at this absolute index or later."""
        kept, n = self._memory.log, int(self._header.batches)
        numbers = range(max(0, n - kept.length), n)
        return numbers.start + bisect_left(numbers, end, key=lambda number: kept.records["start"][number % kept.length])

    def _store(self, packed: Packed, incarnation: int, seq: int) -> None:
        memory, header = self._memory, self._header
        assert packed.rows <= memory.max_rows, f"{packed.rows} rows in a batch of {memory.max_rows} at most"
        slot = self._slots.get(incarnation)
        if slot is None:
            slot = self._take_slot(incarnation)
        start, frames_start, n_frames = memory.committed, int(header.frames_end), len(packed.frames)
        self._give_up(start + packed.rows, frames_start + n_frames)
        fence()
        columns = [np.ascontiguousarray(packed.columns[name], ring.dtype) for name, ring in memory.columns.items()]
        for ring, column in zip(memory.columns.values(), columns, strict=True):
            write_ring(ring, column, start)
        if memory.frames is not None:
            bases = np.full(packed.rows, frames_start - packed.back)
            memory.frames.write(packed.frames, frames_start, bases, start)
            columns += [bases, packed.frames]
        checksum, number = content_checksum(columns), int(header.batches)
        batch = Batch(number, start, packed.rows, n_frames, frames_start, packed.back, incarnation, seq, checksum)
        memory.log.write(batch)
        fence()
        header.batches = number + 1
        self._finish(batch, slot)

    def _finish(self, batch: Batch, slot: int) -> None:
        """Let everything else say that a batch is stored."""
        self._memory.cursors[slot] = batch.incarnation, batch.seq, batch.end, batch.frames_end
        self._header.frames_end = batch.frames_end
        fence()
        self._header.committed = batch.end

    def _give_up(self, end: int, frames_end: int) -> None:
        """Publish what stays whole when rows and frames up to these ends are written."""
        memory, frames = self._memory, self._memory.frames
        oldest = max(memory.first(), end - memory.capacity)
        intact = max(int(self._header.intact), end - memory.n_slots)
        if frames is not None:
            whole = frames.first_row_since(frames_end - frames.capacity, oldest, memory.committed)
            if whole > oldest:
                self._warn_once(end - whole, frames_end / (end - memory.began))
            oldest = whole
            intact = frames.first_row_since(frames_end - len(frames.frames), intact, memory.committed)
        self._header.oldest, self._header.intact = oldest, intact

    def _warn_once(self, n_kept: int, frames_per_item: float) -> None:
        if not self._has_warned:
            self._has_warned = True
            advice = "replay: room for the frames of %d of %d items only: replay.frames_per_item should be above %.2f"
            log.warning(advice, n_kept, self._memory.capacity, frames_per_item)

    def require_cursor(self, incarnation: int) -> None:
        """See that an actor process of this incarnation can store something.

        Raises:
            CursorsFullError: it cannot, for now.
        """
        if incarnation not in self._slots:
            self._free_slot()

    def _take_slot(self, incarnation: int) -> int:
        slot = self._free_slot()
        self._slots.pop(int(self._memory.cursors["incarnation"][slot]), None)
        self._memory.cursors[slot] = 0
        self._slots[incarnation] = slot
        return slot

    def _free_slot(self) -> int:
        """A cursor that nobody has, or that of a process which cannot send a batch twice, unused for longest.

        That is one whose items have all been overwritten, or that is gone. A forgotten cursor of another one would let
        its last batch, if its acknowledgement was lost, be stored a second time.

        Raises:
            CursorsFullError: there is none.
        """
        cursors = self._memory.cursors
        for slot in np.argsort(cursors["end"], kind="stable"):
            incarnation, end = int(cursors["incarnation"][slot]), int(cursors["end"][slot])
            if not incarnation or end <= self._memory.first() or self._is_gone(incarnation):
                return int(slot)
        raise CursorsFullError(
            f"the replay has cursors for {N_CURSORS} actor processes, and all of these may still send a batch again"
        )


def _is_not_known_to_be_gone(_: int) -> bool:
    return False
