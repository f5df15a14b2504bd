"""Rings, arrays in mapped files in which row i lies in slot ``i mod length``; and the checksums of their rows."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from common.data import Array, Column

BLOCK_BYTES: Final = 4096
LARGE_BYTES: Final = 32 << 10
"""For arrays of at least this many bytes the sums are faster than CRC-32 alone. It also saves time to write them by a
system call, or to prepare for storing them."""
_FACTORS: Final[Array] = np.frombuffer(hashlib.shake_128(b"crossborder").digest(BLOCK_BYTES), "<u8") | np.uint64(1)


def compute_checksum(parts: Iterable[Array]) -> int:
    """Compute the checksum, of 32 bits, of the bytes of C-contiguous arrays, one array after another.

    It shows after a power cut whether the rows of a batch are whole. CRC-32 at 5 GB/s would take two fifths of the time
    that ingest needs for pictures. So each 64-bit word of a block of 4 KiB of a large array is first multiplied by an
    odd number that belongs to its place, and the products are added up modulo 2^64, at 19 GB/s. The checksum is the
    CRC-32 of these sums. A changed word always changes the sum of its block. A power cut that tears pages changes many
    words; the chance that the checksum stays the same is about one in 2^32.
    """
    checksum = 0
    for part in parts:
        checksum = add_to_checksum(checksum, part)
    return checksum


def add_to_checksum(checksum: int, part: Array) -> int:
    """Continue a checksum with the bytes of a C-contiguous array."""
    if part.nbytes < LARGE_BYTES:
        return zlib.crc32(part.data, checksum)
    data = part.reshape(-1).view(np.uint8)
    in_blocks = len(data) - len(data) % BLOCK_BYTES
    sums = data[:in_blocks].view("<u8").reshape(-1, len(_FACTORS)).dot(_FACTORS)
    return zlib.crc32(data[in_blocks:].data, zlib.crc32(sums.data, checksum))


MapFile = Callable[[Path, int], mmap.mmap]
"""``common.shared.mapped.map_file`` with its options bound: takes the path of a file and its size in bytes."""
MADV_POPULATE_WRITE: Final = 23
"""madvise(2); Python has no name for this advice."""


def map_ring(mapped: MapFile, path: Path, column: Column, length: int) -> Array:
    """Map a file as ``length`` rows of a column, ``[length, *shape]``."""
    return view_as_ring(mapped(path, length * column.row_bytes), column)


def view_as_ring(file: mmap.mmap, column: Column) -> Array:
    """All bytes of a mapped file as rows of a column, ``[length, *shape]``."""
    array: Array = np.frombuffer(file, column.dtype)
    return array.reshape(-1, *column.shape)


def fault_in(file: mmap.mmap, begin: int, end: int) -> None:
    """Have the kernel map the pages of these bytes with one call; a page fault for each takes several times as long.

    This saves time only: Linux before 5.14 refuses the advice, and then each page is mapped at its first write.
    """
    begin -= begin % mmap.PAGESIZE
    with contextlib.suppress(OSError):
        file.madvise(MADV_POPULATE_WRITE, begin, min(end, len(file)) - begin)


def write_ring(ring: Array, rows: Array, start: int) -> None:
    """Write rows from absolute index ``start`` on, at most as many as the ring has slots."""
    length, n = len(ring), len(rows)
    slot = start % length
    if slot + n <= length:
        ring[slot : slot + n] = rows
        return
    until_end = length - slot
    ring[slot:] = rows[:until_end]
    ring[: n - until_end] = rows[until_end:]


def write_rings(rings: Sequence[Array], columns: Sequence[Array], start: int, files: Sequence[int] = ()) -> int:
    """Write the rows ``[n, *shape]`` of each column into its ring, all of one length, as ``write_ring`` does.

    Args:
        rings: the arrays, or more of them than there are files.
        columns: the rows.
        start: absolute index of the first row.
        files: descriptors of the first rings' files, which then take ``LARGE_BYTES`` and more by a system call.

    Returns:
        The checksum of the bytes that were written, one column after another.

    Raises:
        OSError: a file does not take the bytes, for example because the disk is full.
    """
    slot, checksum = start % len(rings[0]), 0
    end = slot + len(columns[0])
    all_files = [*files, *[None] * (len(rings) - len(files))]
    for ring, rows, file in zip(rings, columns, all_files, strict=True):
        if file is not None and rows.nbytes >= LARGE_BYTES:
            part = np.ascontiguousarray(rows, ring.dtype)
            write_file(file, part, start, len(ring))
        elif end <= len(ring):
            part = ring[slot:end]
            part[...] = rows
        else:
            write_ring(ring, rows, start)
            part = np.ascontiguousarray(rows, ring.dtype)
        checksum = add_to_checksum(checksum, part)
    return checksum


def write_file(file: int, rows: Array, start: int, length: int) -> None:
    """Write rows as ``write_ring`` does, through the descriptor of the ring's file; ``length`` is that of the ring.

    The file's mappings show the bytes at once. The kernel makes a page that is written as a whole from these bytes
    alone. At a store into a mapping it must first read the page from the disk or fill it with zeros, and map it.

    Raises:
        OSError: the file does not take the bytes. Any part of them may have been written.
    """
    slot, row_bytes = start % length, rows.nbytes // len(rows)
    for part, begin in ((rows[: length - slot], slot * row_bytes), (rows[length - slot :], 0)):
        left = part.reshape(-1).view(np.uint8)
        offset = begin
        while len(left):
            try:
                written = os.pwrite(file, left.data, offset)
            except OSError as error:
                error.filename = str(Path(f"/proc/self/fd/{file}").readlink())
                raise
            left, offset = left[written:], offset + written


def read_ring(ring: Array, start: int, end: int) -> Array:
    """Copy the rows with absolute indices ``[start, end)``, at most as many as the ring has slots."""
    length, n = len(ring), end - start
    slot = start % length
    if slot + n <= length:
        return ring[slot : slot + n].copy()
    return np.concatenate([ring[slot:], ring[: n - (length - slot)]])
