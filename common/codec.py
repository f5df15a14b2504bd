"""Items to bytes and back: columns one after another, by the schema agreed at Join. No pickle, no copies in vain."""

from __future__ import annotations

import numpy as np

from common.data import Array, Items, Schema
from common.errors import RefusedError
from common.pb import crossborder_pb2 as pb


def encode(schema: Schema, items: Items, rows: int) -> bytes:
    """The first ``rows`` items as one payload. The items must fit the schema."""
    return b"".join(items[c.name][:rows].tobytes() for c in schema.columns)


def decode(schema: Schema, rows: int, payload: bytes) -> Items:
    """Read-only views of a payload's columns, each ``[rows, *shape]``.

    Raises:
        RefusedError: the size is wrong, a floating-point column holds NaN or infinity, or a boolean is neither 0 nor 1.
    """
    expected = rows * schema.row_bytes
    if len(payload) != expected:
        raise RefusedError(f"payload: expected {expected} bytes for {rows} rows, found {len(payload)}")
    items: Items = {}
    offset = 0
    for column in schema.columns:
        count = rows * column.row_bytes // np.dtype(column.dtype).itemsize
        flat: Array = np.frombuffer(payload, column.dtype, count, offset)
        if flat.dtype.kind == "f" and not np.isfinite(flat).all():
            bad = int(np.flatnonzero(~np.isfinite(flat))[0])
            raise RefusedError(
                f"column '{column.name}': expected finite values, found {flat[bad]} in row {bad * rows // count}"
            )
        if flat.dtype.kind == "b" and flat.view(np.uint8).max(initial=0) > 1:
            raise RefusedError(f"column '{column.name}': expected booleans of 0 or 1, found another byte")
        items[column.name] = flat.reshape(rows, *column.shape)
        offset += rows * column.row_bytes
    return items


def schema_to_pb(schema: Schema) -> pb.Schema:
    columns = [pb.Column(name=c.name, dtype=c.dtype, shape=c.shape) for c in schema.columns]
    return pb.Schema(columns=columns, hash=schema.hash)


def schema_from_pb(message: pb.Schema) -> Schema:
    return Schema.from_json([{"name": c.name, "dtype": c.dtype, "shape": c.shape} for c in message.columns])
