"""Rows of a replay as bytes: a line of JSON about the batches, then the columns one after another, then the links."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np

from common.data import FINAL, Array, Schema
from learner.replay.batch_log import Batch
from learner.replay.copying import Rows
from learner.replay.links import OFFSET


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
