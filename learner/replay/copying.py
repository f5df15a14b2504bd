"""Reading rows of a replay while actors fill it, packing them into bytes, and storing them in another replay.

The other replay has them under the same indices. The bytes are a line of JSON about the batches, then the columns one
after another, then the links.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from common.data import FINAL, Array, Items, Schema
from common.shared.mapped import fence
from learner.replay.batch_log import Batch
from learner.replay.links import OFFSET
from learner.replay.memory import ReplayMemory
from learner.replay.ring import read_ring
from learner.replay.writer import ReplayWriter

ROWS: Final = 1024
"""The most rows of batches that are joined, and of those whose actor is unknown."""
_UNKNOWN: Final = 2**64 - 1
"""Stands for an unknown incarnation of rows. Actors draw their incarnations at random from all 64-bit numbers."""
Rows = tuple[Items, Array | None]
"""The columns of rows, ``[n, *shape]`` each, and their links to earlier rows, ``[n]`` uint32; None for items."""


def list_batches(records: Iterable[Batch], begin: int, end: int, join_rows: int = 0) -> Iterator[Batch]:
    """Batches that hold the rows ``[begin, end)``.

    Args:
        records: of the log, by number; rows without a record get batches of an unknown actor.
        begin: absolute index of the first row.
        end: the end of a batch.
        join_rows: batches of one actor that follow one another are joined, up to this many rows and up to ``ROWS``.
            A learner can compare batches that an actor sends again only with those that are not joined.
    """
    joined = Batch(0, begin, 0, 0, _UNKNOWN, seq=1, follows=1, checksum=0)
    for found in records:
        if not begin < found.end <= end:
            continue
        if found.start > joined.end:  # The log has lost the records of the rows before.
            yield from _split(joined)
            yield from _split(Batch(0, joined.end, found.start - joined.end, 0, _UNKNOWN, seq=1, follows=1, checksum=0))
            joined = joined._replace(start=found.start, rows=0)
        batch = found._replace(start=joined.end, rows=found.end - joined.end)
        is_same = batch.incarnation == joined.incarnation and batch.follows
        if is_same and joined.rows + batch.rows <= min(ROWS, join_rows):
            joined = batch._replace(start=joined.start, rows=joined.rows + batch.rows, follows=joined.follows)
        else:
            yield from _split(joined)
            joined = batch
    yield from _split(joined)


def _split(batch: Batch) -> Iterator[Batch]:
    """A batch that has rows; if its actor is unknown, in batches of ``ROWS`` rows at most."""
    most = ROWS if batch.incarnation == _UNKNOWN else max(1, batch.rows)
    for start in range(batch.start, batch.end, most):
        yield batch._replace(start=start, rows=min(most, batch.end - start))


def read_rows(memory: ReplayMemory, start: int, end: int) -> Rows | None:
    """Copy the rows ``[start, end)`` and their links; None if one of them was overwritten before it was copied."""
    items = {name: read_ring(ring, start, end) for name, ring in memory.columns.items()}
    previous = read_ring(memory.links.previous, start, end) if memory.links is not None else None
    fence()
    return (items, previous) if start >= memory.first() else None


def open_copy(copy: ReplayMemory, kept: Iterable[int]) -> ReplayWriter:
    """A writer of rows of another replay.

    That replay may have rows of more actor processes than it has cursors. The processes without a cursor are gone.
    """
    present = set(kept)
    return ReplayWriter(copy, is_gone=lambda incarnation: incarnation not in present)


def pack(schema: Schema, rows: Rows, batches: Sequence[Batch]) -> bytes:
    """Put rows and the records of their batches, which follow one another, into bytes."""
    items, previous = rows
    columns = [items[column.name] for column in schema.columns] + ([previous] if previous is not None else [])
    head = json.dumps([[b.start, b.rows, b.incarnation, b.seq, b.follows] for b in batches]).encode()
    return b"".join([head, b"\n", *(np.ascontiguousarray(column).tobytes() for column in columns)])


def unpack(schema: Schema, content: bytes) -> Iterator[tuple[Rows, Batch]]:
    """The batches that ``pack`` was given, each with its rows.

    Raises:
        ValueError: the content is not that of rows with these columns.
    """
    line = content.index(b"\n")
    listed = json.loads(content[:line])
    batches = [Batch(0, start, rows, 0, actor, seq, follows, checksum=0) for start, rows, actor, seq, follows in listed]
    n, at, arrays = sum(batch.rows for batch in batches), line + 1, list[Array]()
    for column in [*schema.columns, *([OFFSET] if schema.is_rows else [])]:
        values = np.frombuffer(content, column.dtype, n * column.row_bytes // np.dtype(column.dtype).itemsize, at)
        arrays.append(values.reshape(n, *column.shape))
        at += values.nbytes
    begin = 0
    for batch in batches:
        end = begin + batch.rows
        items = {column.name: array[begin:end] for column, array in zip(schema.columns, arrays, strict=False)}
        yield (items, arrays[-1][begin:end] if schema.is_rows else None), batch
        begin = end


def count_steps(rows: Rows, n: int) -> int:
    """How many of ``n`` rows are steps; final rows are not steps."""
    items, previous = rows
    return n if previous is None else n - int(np.count_nonzero(items[FINAL.name]))
