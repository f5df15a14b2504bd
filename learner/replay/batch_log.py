"""One record for each batch in the replay: where its rows and frames lie, whose it is, and its checksum.

Records have numbers 0, 1, 2, …; record n lies in slot ``n mod length``. A record is whole when its seal, a CRC-32 of
its other bytes, holds: that tells a record from one that a power cut has left half written. Its checksum is a CRC-32
of the bytes that the batch has stored, so that rows which a power cut has torn are found out.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from common.data import Array

MAX_RECORDS: Final = 1 << 20
"""Records kept, at most: 64 MiB."""
RECORD: Final = np.dtype(
    [
        ("number", "<i8"),
        ("start", "<i8"),
        ("rows", "<u4"),
        ("n_frames", "<u4"),
        ("frames_start", "<i8"),
        ("back", "<i8"),
        ("incarnation", "<u8"),
        ("seq", "<u8"),
        ("checksum", "<u4"),
        ("seal", "<u4"),
    ]
)
"""64 bytes, so that no record crosses the border of a page or of a disk's sector."""
_FIELDS: Final = struct.Struct("<qqIIqqQQI")
_SEAL: Final = struct.Struct("<I")


class Batch(NamedTuple):
    """A batch in the replay. Its checksum is that of ``content_checksum``."""

    number: int
    start: int
    """Absolute index of its first row."""
    rows: int
    n_frames: int
    frames_start: int
    """Number of its first frame."""
    back: int
    """Its rows refer to frames from ``frames_start - back`` on."""
    incarnation: int
    """Of the actor process that made it; 0: unknown."""
    seq: int
    checksum: int

    @property
    def end(self) -> int:
        """Absolute index after its last row."""
        return self.start + self.rows

    @property
    def frames_end(self) -> int:
        """Number after its last frame."""
        return self.frames_start + self.n_frames

    def is_followed_by(self, other: Batch) -> bool:
        """Whether ``other`` is the batch that was stored next."""
        return (other.number, other.start, other.frames_start) == (self.number + 1, self.end, self.frames_end)


def n_records(n_slots: int) -> int:
    """Records in the log of a replay with ``n_slots`` slots: each batch has a row or more."""
    return min(n_slots, MAX_RECORDS)


def content_checksum(parts: Iterable[Array]) -> int:
    """CRC-32 of the bytes of C-contiguous arrays, one after another: 7 GB/s with zlib 1.3 on x86."""
    found = 0
    for part in parts:
        found = zlib.crc32(part.data, found)
    return found


class BatchLog:
    """The newest records of a replay.

    Args:
        file: of ``length`` records; None for a replay that has none, which then reads as one without batches.
    """

    def __init__(self, file: mmap.mmap | None) -> None:
        self._bytes = memoryview(file if file is not None else b"")
        self.records: Array = np.frombuffer(self._bytes, RECORD)  # [length]
        self.length = len(self.records)

    def write(self, batch: Batch) -> None:
        """Put the record of a batch in its slot."""
        fields = _FIELDS.pack(*batch)
        begin = batch.number % self.length * RECORD.itemsize
        self._bytes[begin : begin + RECORD.itemsize] = fields + _SEAL.pack(zlib.crc32(fields))

    def read(self, number: int) -> Batch | None:
        """The record of this number; None if another one, or none that is whole, lies in its slot."""
        found = self._in_slot(number % self.length) if self.length and number >= 0 else None
        return found if found is not None and found.number == number else None

    def whole(self) -> list[Batch]:
        """All records that are whole, by number."""
        in_slots = ((slot, self._in_slot(slot)) for slot in self._used())
        return sorted(batch for slot, batch in in_slots if batch is not None and batch.number % self.length == slot)

    def newest(self, end: int) -> Array:
        """A copy of the records with numbers below ``end`` that are kept, in their order, ``[n]``."""
        numbers = np.arange(max(0, end - self.length), end)
        records = self.records[numbers % max(1, self.length)]
        kept: Array = records[records["number"] == numbers]
        return kept

    def keep(self, first: int, end: int) -> None:
        """Remove all records but those with numbers in ``[first, end)``."""
        numbers = self.records["number"]
        self.records[(numbers < first) | (numbers >= end)] = 0

    def _used(self) -> list[int]:
        """Slots that hold anything. A record of zeros has no seal that holds."""
        return [int(slot) for slot in np.flatnonzero(self.records["seal"] != 0)]

    def _in_slot(self, slot: int) -> Batch | None:
        begin = slot * RECORD.itemsize
        found = bytes(self._bytes[begin : begin + RECORD.itemsize])
        fields, seal = found[: _FIELDS.size], found[_FIELDS.size :]
        return Batch(*_FIELDS.unpack(fields)) if _SEAL.pack(zlib.crc32(fields)) == seal else None
