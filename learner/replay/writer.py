"""The one process that stores batches in a replay: ingest, or a trainer that plays or copies items itself.

``learner.replay.memory`` describes the order of a write, and the files after a kill between two of its steps.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from common.data import Items
from common.errors import CrossborderError
from common.wire.frames import Packed, Packer
from learner.replay.batch_log import Batch, compute_checksum
from learner.replay.memory import ReplayMemory
from learner.replay.ring import read_ring, write_ring
from learner.shared.mapped import fence

log = logging.getLogger(__name__)


class CursorsFullError(CrossborderError):
    """There is no cursor for another actor process: all belong to processes that may still send a batch again."""


class ReplayWriter:
    """Stores batches. Opening it finishes a batch that counts already, if a kill came before its cursor was written.

    A batch that did not count yet needs nothing: its rows lie beyond ``committed``, and the next batch overwrites them.

    Args:
        memory: opened for writing.
        is_gone: whether the actor process of an incarnation will never send anything again. None: it is never known.
    """

    def __init__(self, memory: ReplayMemory, is_gone: Callable[[int], bool] | None = None) -> None:
        self._memory = memory
        self._header = memory.header
        self._is_gone = is_gone or (lambda _: False)
        self._packer = Packer(memory.schema)
        self._has_warned = False
        last = memory.read_last_batch()
        if last is not None and last.end > memory.committed:
            incarnations = memory.cursors["incarnation"]
            slots = *np.flatnonzero(incarnations == last.incarnation), *np.flatnonzero(incarnations == 0)
            self._finish(last, int(slots[0]))  # There is a slot: it was freed before the batch was stored.
        self._slots = {int(row["incarnation"]): i for i, row in enumerate(memory.cursors) if row["incarnation"]}

    def last_seq(self, incarnation: int) -> int:
        """Highest seq of an incarnation that is stored; 0 for an unknown incarnation."""
        slot = self._slots.get(incarnation)
        return 0 if slot is None else int(self._memory.cursors["seq"][slot])

    def append(self, items: Items, rows: int, incarnation: int, seq: int) -> None:
        """Store a batch and its cursor, both or neither. Frames that the batch before has stored are not stored again.

        The items must fit the schema and be no more than ``max_rows``; ``seq`` must follow ``last_seq``.

        Raises:
            CursorsFullError: nothing was stored, see ``require_cursor``.
        """
        self._store(self._packer.pack(items, rows), incarnation, seq)

    def append_packed(self, batch: Packed, incarnation: int, seq: int) -> None:
        """Store a batch that refers to no frames but its own; otherwise as ``append``."""
        self._packer = Packer(self._memory.schema)  # The next batch must not refer to the batch that was packed last.
        self._store(batch, incarnation, seq)

    def mark(self) -> dict[str, Any]:
        """Where the replay ends now, as plain values, for ``roll_back``."""
        return {
            "oldest": self._memory.first(),
            "end": self._memory.committed,
            "frames_end": int(self._header.frames_end),
            "back": self._packer.back,
        }

    def roll_back(self, mark: Mapping[str, Any], incarnation: int) -> bool:
        """Forget the items that this incarnation has stored since ``mark()``; the items that counted then count again.

        No other process may be reading or writing. The items are forgotten once ``batches`` is lowered. A kill before
        that undoes the roll-back: the last batch still counts, so ``learner.replay.recovery`` or the next writer takes
        cursor, ``committed`` and ``frames_end`` from its record again. So all of these are lowered first.

        Returns:
            False, and nothing is forgotten, if another incarnation has stored items since, or there are fewer items
            than at the mark, or items that counted at the mark have been overwritten.
        """
        memory, header = self._memory, self._header
        oldest, end, frames_end = mark["oldest"], mark["end"], mark["frames_end"]
        others = memory.cursors["end"][memory.cursors["incarnation"] != incarnation].max(initial=0)
        is_whole = header.intact <= oldest or oldest == end
        if end == memory.committed:
            is_whole &= frames_end == header.frames_end  # A copy of a replay numbers its frames anew.
        if not (is_whole and others <= end <= memory.committed):
            return False
        number = self._find_number(end)
        own = memory.cursors["incarnation"] == incarnation
        memory.cursors["end"][own] = np.minimum(memory.cursors["end"][own], end)
        header.oldest = oldest
        header.committed = end
        header.frames_end = frames_end
        header.batches = number
        header.intact = oldest
        memory.log.keep(0, number)
        memory.excluded = memory.excluded[memory.excluded < end]
        before = b""
        if memory.frames is not None:
            before = read_ring(memory.frames.frames, frames_end - mark["back"], frames_end).tobytes()
        self._packer = Packer(memory.schema, before)
        return True

    def _find_number(self, end: int) -> int:
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
        # Trainer and ingest race here. A reader may be gathering the rows that this batch overwrites, so ``oldest`` is
        # raised above them first. The reader looks at ``oldest`` after it has gathered, and redraws the rows below it.
        self._give_up(start + packed.rows, frames_start + n_frames)
        fence()
        columns = [np.ascontiguousarray(packed.columns[name], ring.dtype) for name, ring in memory.columns.items()]
        for ring, column in zip(memory.columns.values(), columns, strict=True):
            write_ring(ring, column, start)
        if memory.frames is not None:
            bases = np.full(packed.rows, frames_start - packed.back)
            memory.frames.write(packed.frames, frames_start, bases, start)
            columns += [bases, packed.frames]
        checksum, number = compute_checksum(columns), int(header.batches)
        batch = Batch(number, start, packed.rows, n_frames, frames_start, packed.back, incarnation, seq, checksum)
        memory.log.write(batch)
        fence()
        # With this word the batch counts. Killed before it, the actor sends the batch again and it is stored here;
        # killed after it, the next writer finishes the batch from its record.
        header.batches = number + 1
        self._finish(batch, slot)

    def _finish(self, batch: Batch, slot: int) -> None:
        """Write the cursor of a batch that counts, and let readers see its rows.

        ``committed`` comes last: a reader that sees it sees the rows, the frames and the cursor too.
        """
        self._memory.cursors[slot] = batch.incarnation, batch.seq, batch.end, batch.frames_end
        self._header.frames_end = batch.frames_end
        fence()
        self._header.committed = batch.end

    def _give_up(self, end: int, frames_end: int) -> None:
        """Raise ``oldest`` and ``intact`` above the rows that are overwritten by rows and frames up to these ends."""
        memory, frames = self._memory, self._memory.frames
        oldest = max(memory.first(), end - memory.capacity)
        intact = max(int(self._header.intact), end - memory.n_slots)
        if frames is not None:
            with_frames = frames.find_row_since(frames_end - frames.capacity, oldest, memory.committed)
            if with_frames > oldest:
                self._warn_once(end - with_frames, frames_end / (end - memory.began))
            oldest = with_frames
            intact = frames.find_row_since(frames_end - len(frames.frames), intact, memory.committed)
        self._header.oldest, self._header.intact = oldest, intact

    def _warn_once(self, n_kept: int, frames_per_item: float) -> None:
        if not self._has_warned:
            self._has_warned = True
            advice = "replay: room for the frames of %d of %d items only: replay.frames_per_item should be above %.2f"
            log.warning(advice, n_kept, self._memory.capacity, frames_per_item)

    def require_cursor(self, incarnation: int) -> None:
        """Check that an actor process of this incarnation can store a batch.

        Raises:
            CursorsFullError: it cannot store one now.
        """
        if incarnation not in self._slots:
            self._find_free_slot()

    def _take_slot(self, incarnation: int) -> int:
        slot = self._find_free_slot()
        self._slots.pop(int(self._memory.cursors["incarnation"][slot]), None)
        self._memory.cursors[slot] = 0
        self._slots[incarnation] = slot
        return slot

    def _find_free_slot(self) -> int:
        """The slot of a cursor that no process needs; of several, that of the process that stored a batch longest ago.

        An actor process needs its cursor as long as it may send its last batch again because the acknowledgement was
        lost: without the cursor that batch would be stored twice. It does not need the cursor once it is gone, or once
        all of its items have been overwritten.

        Raises:
            CursorsFullError: all cursors are needed.
        """
        cursors = self._memory.cursors
        for slot in np.argsort(cursors["end"], kind="stable"):
            incarnation, end = int(cursors["incarnation"][slot]), int(cursors["end"][slot])
            if not incarnation or end <= self._memory.first() or self._is_gone(incarnation):
                return int(slot)
        raise CursorsFullError(
            f"the replay has cursors for {len(cursors)} actor processes, and all of these may still send a batch again"
        )
