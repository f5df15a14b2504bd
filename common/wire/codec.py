"""Items to bytes and back: one column after another, by the schema that both sides agreed on at Join.

``PushItemsRequest.payload`` in the .proto file describes the format. Nothing is pickled, and decoded columns are views
of the payload.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from common.data import Array, Column, Items, Schema
from common.errors import RefusedError
from common.values import REFUSE_ALL, Rules
from common.wire.frames import NO_FRAMES, BufferedItems, ItemBuffer, Packed, split_positions
from common.wire.pb import crossborder_pb2 as pb


def encode(schema: Schema, items: Items, rows: int) -> bytes:
    """The first ``rows`` items, which must fit the schema, as one payload."""
    buffer = ItemBuffer(schema)
    buffer.add({column.name: items[column.name][:rows] for column in schema.columns}, rows)
    return encode_together(schema, [buffer.take()])


def encode_together(schema: Schema, batches: Sequence[BufferedItems]) -> bytes:
    """Batches of one ``ItemBuffer``, in order, as one payload with the frames of all items once."""
    positions, frames = _merge_frames(schema, batches) if schema.frame else ({}, ())
    pieces: list[bytes | memoryview] = []
    for column in schema.columns:
        if column.frames:
            pieces.append(positions[column.name].tobytes())
        else:
            pieces += [batch.columns[column.name] for batch in batches]
    return b"".join([*pieces, *frames])


def _merge_frames(schema: Schema, batches: Sequence[BufferedItems]) -> tuple[Items, Iterator[memoryview]]:
    """The frame columns of all batches, and the frames in which their positions count."""
    used, positions = np.unique(np.concatenate([batch.numbers for batch in batches]), return_inverse=True)
    return split_positions(schema, positions.reshape(-1, schema.max_frames)), _frames(batches, used)


def _frames(batches: Sequence[BufferedItems], numbers: Array) -> Iterator[memoryview]:
    """The frames with these numbers, which ascend."""
    remaining = iter(batches)
    batch = next(remaining)
    for number in numbers.tolist():
        while number >= batch.end:
            batch = next(remaining)
        yield batch.frame(number)


def decode(schema: Schema, rows: int, payload: bytes, rules: Rules = REFUSE_ALL) -> Packed:
    """The items of a payload of at least one row, as read-only views of it.

    Raises:
        RefusedError: the size is wrong, a boolean is neither 0 nor 1, a position is beyond the frames, or the rules
            refuse NaN, infinity or a value outside its column's domain.
    """
    n_frames = _count_frames(schema, rows, len(payload))
    columns: Items = {}
    offset = 0
    for column in schema.columns:
        columns[column.name] = _read(column.packed, rows, payload, offset, rules)
        offset += rows * column.packed.row_bytes
    for column in schema.frame_columns:
        _check_positions(column.name, columns[column.name], n_frames)
    frames = _read(schema.frame, n_frames, payload, offset, rules) if schema.frame else NO_FRAMES
    return Packed(rows, columns, frames)


def _count_frames(schema: Schema, rows: int, found: int) -> int:
    """The number of frames in a payload of ``found`` bytes.

    Raises:
        RefusedError: the bytes are no whole number of frames, or more frames than the rows could refer to.
    """
    fixed = rows * schema.packed_row_bytes
    if schema.frame is None:
        if found != fixed:
            raise RefusedError(f"payload: expected {fixed} bytes for {rows} rows, found {found}", "payload")
        return 0
    n_frames, rest = divmod(found - fixed, schema.frame.row_bytes)
    if rest or not 1 <= n_frames <= rows * schema.max_frames:
        raise RefusedError(
            f"payload: expected {fixed} bytes for {rows} rows and 1 to {rows * schema.max_frames} frames of "
            f"{schema.frame.row_bytes} bytes, found {found}",
            "payload",
        )
    return n_frames


def _read(column: Column, rows: int, payload: bytes, offset: int, rules: Rules) -> Array:
    """One column of a payload, ``[rows, *shape]``."""
    count = rows * column.row_bytes // np.dtype(column.dtype).itemsize
    flat: Array = np.frombuffer(payload, column.dtype, count, offset)
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        flat = rules.handle_nonfinite(column.name, flat, rows)
    if flat.dtype.kind == "b" and flat.view(np.uint8).max(initial=0) > 1:
        raise RefusedError(f"column '{column.name}': expected booleans of 0 or 1, found another byte", "values")
    if column.domain is not None and not column.domain.holds(flat):
        rules.handle_outside(column, flat, rows)
    return flat.reshape(rows, *column.shape)


def _check_positions(name: str, positions: Array, n_frames: int) -> None:
    rows, _ = np.nonzero(positions >= n_frames)
    if len(rows):
        row = int(rows[0])
        raise RefusedError(
            f"column '{name}': expected frame positions below {n_frames}, found {positions[row].max()} in row {row}",
            "values",
        )


def schema_to_pb(schema: Schema) -> pb.Schema:
    columns = [pb.Column(name=c.name, dtype=c.dtype, shape=c.shape, frames=c.frames) for c in schema.columns]
    return pb.Schema(columns=columns, hash=schema.hash)


def schema_from_pb(message: pb.Schema) -> Schema:
    columns = [{"name": c.name, "dtype": c.dtype, "shape": c.shape, "frames": c.frames} for c in message.columns]
    return Schema.from_json(columns)
