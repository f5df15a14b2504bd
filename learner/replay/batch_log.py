"""The log of batches: for each batch where its rows lie, which actor process sent it, and a checksum.

Records have numbers 0, 1, 2, …; record n lies in slot ``n mod length``. A power cut can tear a record: some of its
bytes are new and some are old. So each record ends with a seal, the CRC-32 of its other bytes, and a record whose seal
does not fit is not read. A power cut can tear the rows of a batch too: the record has a checksum of all bytes
that the batch has stored (``learner.replay.ring``), and ``learner.replay.recovery`` compares the two.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from bisect import bisect_left
from typing import Final, NamedTuple

import numpy as np

from common.data import Array

MAX_RECORDS: Final = 1 << 20
"""The most records that are kept: 64 MiB."""
FEW_RECORDS: Final = 1 << 16
"""Records for which there is always room, if there are as many slots: 4 MiB."""
ROWS_PER_RECORD: Final = 4
"""Actors send batches of at least this many rows on average. A log with a record for each row would be larger than the
rows themselves, if these are small."""
RECORD: Final = np.dtype(
    [
        ("number", "<i8"),
        ("start", "<i8"),
        ("rows", "<i8"),
        ("steps_end", "<i8"),
        ("incarnation", "<u8"),
        ("seq", "<u8"),
        ("follows", "<u8"),
        ("checksum", "<u4"),
        ("seal", "<u4"),
    ]
)
"""64 bytes, so no record lies across the border of two pages or of two sectors of a disk."""
_FIELDS: Final = struct.Struct("<qqqqQQQI")
_SEAL: Final = struct.Struct("<I")


class Batch(NamedTuple):
    """A batch in the replay."""

    number: int
    start: int
    """Absolute index of its first row."""
    rows: int
    steps_end: int
    """Steps ever stored, up to the end of this batch."""
    incarnation: int
    """That of the actor process that sent the batch; 0: unknown."""
    seq: int
    follows: int
    """0: the actor dropped rows before this batch, so no later row of the actor continues a row before this batch."""
    checksum: int
    """See ``learner.replay.ring``."""

    @property
    def end(self) -> int:
        """Absolute index after its last row."""
        return self.start + self.rows

    def is_followed_by(self, other: Batch) -> bool:
        """Whether ``other`` is the batch that was stored next."""
        return (other.number, other.start) == (self.number + 1, self.end)


def choose_length(n_slots: int, *, single_rows: bool) -> int:
    """Records in the log of a replay with ``n_slots`` slots: at most one for each slot, since each batch has a row.

    Rows whose record the log has overwritten stay in the replay and are drawn. After a power cut recovery cannot check
    them, and gives them up.

    Args:
        n_slots: of the replay.
        single_rows: whether one process stores each row by itself.
    """
    n_batches = n_slots if single_rows else max(FEW_RECORDS, n_slots // ROWS_PER_RECORD)
    return min(n_slots, n_batches, MAX_RECORDS)


class BatchLog:
    """The records of the newest batches.

    Args:
        file: has room for ``length`` records.
    """

    def __init__(self, file: mmap.mmap) -> None:
        self._bytes = memoryview(file)
        self.records: Array = np.frombuffer(self._bytes, RECORD)  # [length]
        self.length = len(self.records)

    def write(self, batch: Batch) -> None:
        """Put the record of a batch into its slot."""
        fields = _FIELDS.pack(*batch)
        begin = batch.number % self.length * RECORD.itemsize
        self._bytes[begin : begin + RECORD.itemsize] = fields + _SEAL.pack(zlib.crc32(fields))

    def read(self, number: int) -> Batch | None:
        """The record of this number; None if its slot holds another record, or one whose seal does not fit."""
        batch = self._read_slot(number % self.length) if number >= 0 else None
        return batch if batch is not None and batch.number == number else None

    def read_all(self) -> list[Batch]:
        """All records whose seals fit, by number."""
        used = np.flatnonzero(self.records["seal"] != 0).tolist()  # A slot of zeros has no seal that fits.
        in_slots = ((slot, self._read_slot(slot)) for slot in used)
        return sorted(batch for slot, batch in in_slots if batch is not None and batch.number % self.length == slot)

    def find(self, incarnation: int, seq: int, end: int) -> Batch | None:
        """The record of a batch of an actor process, among the ``FEW_RECORDS`` newest with numbers below ``end``."""
        newest = np.arange(max(0, end - min(self.length, FEW_RECORDS)), end)
        slots = newest % self.length
        is_same = (self.records["seq"][slots] == seq) & (self.records["incarnation"][slots] == incarnation)
        return self.read(int(newest[is_same][-1])) if is_same.any() else None

    def find_number(self, start: int, end: int) -> int:
        """The number of the first batch that begins at this absolute index or later, among those below ``end``."""
        numbers = range(max(0, end - self.length), end)
        return numbers.start + bisect_left(numbers, start, key=lambda n: self.records["start"][n % self.length])

    def find_seq(self, incarnation: int, end: int, newest: int) -> int:
        """The highest seq up to which the batches of an actor process end at this absolute index or before.

        Its highest seq is ``newest``. 0: it is not known, since even the oldest record ends beyond ``end``.
        """
        is_beyond = self.records["start"] + self.records["rows"] > end
        beyond = self.records["seq"][is_beyond & (self.records["incarnation"] == incarnation)]
        return 0 if is_beyond.all() else int(beyond.min(initial=newest + 1)) - 1

    def copy_newest(self, end: int) -> Array:
        """Copy the records with numbers below ``end`` that the log still has, in their order, ``[n]`` ``RECORD``."""
        numbers = np.arange(max(0, end - self.length), end)
        records = self.records[numbers % self.length]
        kept: Array = records[records["number"] == numbers]
        return kept

    def keep(self, first: int, end: int) -> None:
        """Remove all records except the records with numbers in ``[first, end)``."""
        numbers = self.records["number"]
        self.records[(numbers < first) | (numbers >= end)] = 0

    def _read_slot(self, slot: int) -> Batch | None:
        begin = slot * RECORD.itemsize
        record = bytes(self._bytes[begin : begin + RECORD.itemsize])
        fields, seal = record[: _FIELDS.size], record[_FIELDS.size :]
        return Batch(*_FIELDS.unpack(fields)) if _SEAL.pack(zlib.crc32(fields)) == seal else None
