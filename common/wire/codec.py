"""Rows to bytes and back: one column after another, by the schema that both sides agreed on at Join.

``PushItemsRequest.payload`` in the .proto file describes the format. Nothing is pickled, and decoded columns are views
of the payload.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.bad_values import REFUSE_ALL, Rules, has_extreme
from common.data import Array, BufferedItems, Column, Items, Schema
from common.errors import RefusedError
from common.wire.pb import crossborder_pb2 as pb


def buffer(schema: Schema, items: Items, rows: int) -> BufferedItems:
    """A copy of the first ``rows`` rows, which must fit the schema."""
    return BufferedItems(rows, {column.name: items[column.name][:rows].tobytes() for column in schema.columns})


def encode(schema: Schema, items: Items, rows: int) -> bytes:
    """The first ``rows`` rows, which must fit the schema, as one payload."""
    return b"".join(encode_together(schema, [buffer(schema, items, rows)]))


def encode_together(schema: Schema, batches: Sequence[BufferedItems]) -> Sequence[bytes]:
    """The pieces of one payload with the rows of all batches, in order."""
    return [batch.columns[column.name] for column in schema.columns for batch in batches]


def split(schema: Schema, batch: BufferedItems, most_rows: int) -> Sequence[BufferedItems]:
    """The batch in parts of at most ``most_rows`` rows; a batch that is small enough stays as it is."""
    if batch.rows <= most_rows:
        return [batch]
    ends = [*range(most_rows, batch.rows, most_rows), batch.rows]
    return [_cut(schema, batch, begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _cut(schema: Schema, batch: BufferedItems, begin: int, end: int) -> BufferedItems:
    sizes = {column.name: column.row_bytes for column in schema.columns}
    parts = {name: column[begin * sizes[name] : end * sizes[name]] for name, column in batch.columns.items()}
    return BufferedItems(end - begin, parts)


def decode(schema: Schema, rows: int, payload: bytes | memoryview, rules: Rules = REFUSE_ALL) -> Items:
    """The rows of a payload, at least one, as read-only views of it.

    Raises:
        RefusedError: the size is wrong, a boolean is neither 0 nor 1, or the rules refuse an extreme value or one
            outside its column's domain.
    """
    if len(payload) != rows * schema.row_bytes:
        raise RefusedError(
            f"payload: expected {rows * schema.row_bytes} bytes for {rows} rows, found {len(payload)}", "payload"
        )
    columns: Items = {}
    offset = 0
    for column in schema.columns:
        columns[column.name] = _read(column, rows, payload, offset, rules)
        offset += rows * column.row_bytes
    return columns


def _read(column: Column, rows: int, payload: bytes | memoryview, offset: int, rules: Rules) -> Array:
    """One column of a payload, ``[rows, *shape]``."""
    dtype = column.numpy_dtype
    flat: Array = np.frombuffer(payload, dtype, rows * column.row_bytes // dtype.itemsize, offset)
    if dtype.kind == "f" and has_extreme(flat, rules.largest_of(column.name)):
        flat = rules.handle_extreme(column.name, flat, rows)
    if dtype.kind == "b" and flat.view(np.uint8).max(initial=0) > 1:
        raise RefusedError(f"column '{column.name}': expected booleans of 0 or 1, found another byte", "values")
    if column.domain is not None and not column.domain.holds(flat):
        rules.handle_outside(column, flat, rows)
    return flat.reshape(rows, *column.shape)


def schema_to_pb(schema: Schema) -> pb.Schema:
    columns = [pb.Column(name=c.name, dtype=c.dtype, shape=c.shape) for c in schema.columns]
    return pb.Schema(columns=columns, hash=schema.hash)


def schema_from_pb(message: pb.Schema) -> Schema:
    return Schema.from_json([{"name": c.name, "dtype": c.dtype, "shape": c.shape} for c in message.columns])
