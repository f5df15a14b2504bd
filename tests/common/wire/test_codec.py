from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.data import Column, Items, Schema
from common.errors import RefusedError
from common.wire.codec import decode, encode, encode_together, schema_from_pb, schema_to_pb
from common.wire.frames import ItemBuffer, unpack
from common.wire.pb import crossborder_pb2 as pb
from tests.frames import SCHEMA as STACKED
from tests.frames import stacked_items

DTYPES = ["<f2", "<f4", "<f8", "<i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1"]
SCHEMAS = st.builds(
    lambda names, parts: Schema(
        tuple(Column(name, np.dtype(t).str, shape) for name, (t, shape) in zip(names, parts, strict=True))
    ),
    st.just(["a", "b", "c"]),
    st.lists(
        st.tuples(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)),
        min_size=3,
        max_size=3,
    ),
)
PAIR = Schema((Column("n", "<i8"), Column("xy", "<f4", (2,))))


@st.composite
def filled(draw: st.DrawFn) -> tuple[Schema, int, Items]:
    """A schema, a number of rows, and items that fit: finite, some of them strided."""
    schema = draw(SCHEMAS)
    rows = draw(st.integers(0, 5))
    items: Items = {}
    for column in schema.columns:
        finite = hnp.from_dtype(np.dtype(column.dtype), allow_nan=False, allow_infinity=False)
        array = draw(hnp.arrays(column.dtype, (rows, *column.shape), elements=finite))
        items[column.name] = np.repeat(array, 2, axis=0)[::2] if draw(st.booleans()) else array
    return schema, rows, items


@given(filled())
def test_items_of_any_schema_survive_the_wire_bit_by_bit(case: tuple[Schema, int, Items]) -> None:
    schema, rows, items = case
    payload = encode(schema, items, rows)
    assert len(payload) == rows * schema.row_bytes
    decoded = decode(schema, rows, payload).columns
    assert schema.count(decoded) == rows
    for name, column in items.items():
        assert decoded[name].tobytes() == column.tobytes()


@given(filled(), st.integers(0, 5))
def test_only_the_first_rows_are_encoded(case: tuple[Schema, int, Items], rows: int) -> None:
    schema, available, items = case
    rows = min(rows, available)
    decoded = decode(schema, rows, encode(schema, items, rows)).columns
    for name, column in items.items():
        np.testing.assert_array_equal(decoded[name], column[:rows])


@given(SCHEMAS)
def test_any_schema_survives_the_wire_with_its_hash(schema: Schema) -> None:
    message = pb.Schema.FromString(schema_to_pb(schema).SerializeToString())
    assert schema_from_pb(message) == schema
    assert message.hash == schema.hash


def test_a_payload_is_column_after_column_without_padding() -> None:
    items = {"n": np.array([1, 2]), "xy": np.array([[1, 2], [3, 4]], np.float32)}
    expected = np.array([1, 2], "<i8").tobytes() + np.array([1, 2, 3, 4], "<f4").tobytes()
    assert encode(PAIR, items, 2) == expected


@pytest.mark.parametrize("change", [-1, 1, 16])
def test_a_payload_of_another_size_is_refused_with_both_sizes(change: int) -> None:
    with pytest.raises(RefusedError, match=f"expected 32 bytes for 2 rows, found {32 + change}"):
        decode(PAIR, 2, bytes(32 + change))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 2])
def test_a_value_that_is_not_finite_is_refused_with_its_column_and_row(value: float, row: int) -> None:
    items: Items = {"n": np.arange(3), "xy": np.zeros((3, 2), np.float32)}
    items["xy"][row, 1] = value
    with pytest.raises(RefusedError, match=rf"column 'xy': expected finite values, found {value} in row {row}$"):
        decode(PAIR, 3, encode(PAIR, items, 3))


def test_decoded_columns_are_read_only() -> None:
    decoded = decode(PAIR, 1, bytes(16)).columns
    with pytest.raises(ValueError, match="read-only"):
        decoded["n"][0] = 1


@given(st.integers(0, 100), st.integers(1, 30))
def test_stacks_of_real_episodes_survive_the_wire_and_share_their_frames(start: int, rows: int) -> None:
    items = stacked_items(np.arange(start, start + rows))
    payload = encode(STACKED, items, rows)
    batch = decode(STACKED, rows, payload)
    for name, column in unpack(STACKED, batch).items():
        np.testing.assert_array_equal(column, items[name])
    shown = np.concatenate([items["obs"], items["next_obs"]]).reshape(-1, 6)
    assert len(batch.frames) == len(np.unique(shown, axis=0))
    assert len(payload) == rows * STACKED.packed_row_bytes + batch.frames.nbytes


@given(st.data(), st.sampled_from(["|u1", "<f4", "<i8"]), st.integers(1, 5))
def test_stacks_of_any_kind_survive_the_wire_bit_by_bit(data: st.DataObject, dtype: str, rows: int) -> None:
    schema = Schema((Column("a", dtype, (3, 2, 2), frames=True), Column("b", dtype, (1, 2, 2), frames=True)))
    finite = hnp.from_dtype(np.dtype(dtype), allow_nan=False, allow_infinity=False)
    items: Items = {c.name: data.draw(hnp.arrays(dtype, (rows, *c.shape), elements=finite)) for c in schema.columns}
    batch = decode(schema, rows, encode(schema, items, rows))
    for name, column in unpack(schema, batch).items():
        assert column.tobytes() == items[name].tobytes()


def test_a_schema_with_frames_survives_the_wire_with_its_hash() -> None:
    message = pb.Schema.FromString(schema_to_pb(STACKED).SerializeToString())
    assert schema_from_pb(message) == STACKED
    assert message.hash == STACKED.hash


def test_frames_come_after_all_columns() -> None:
    schema = Schema((Column("x", "|u1", (2, 2), frames=True), Column("n", "<i8")))
    items: Items = {"x": np.array([[[7, 7], [8, 8]], [[8, 8], [9, 9]]], np.uint8), "n": np.array([5, 6])}
    expected = np.array([0, 1, 1, 2], "<u4").tobytes() + np.array([5, 6], "<i8").tobytes() + bytes([7, 7, 8, 8, 9, 9])
    assert encode(schema, items, 2) == expected


TWO = encode(STACKED, stacked_items(np.arange(3, 5)), 2)
"""Two rows, and six frames of 6 bytes."""


@pytest.mark.parametrize("payload", [b"", TWO[:79], TWO[:80], TWO[:-1], TWO + b"x", TWO + bytes(11 * 6)])
def test_too_few_or_too_many_frames_and_parts_of_one_are_refused_with_the_sizes(payload: bytes) -> None:
    expected = f"payload: expected 80 bytes for 2 rows and 1 to 16 frames of 6 bytes, found {len(payload)}$"
    with pytest.raises(RefusedError, match=expected):
        decode(STACKED, 2, payload)


def test_as_many_frames_as_positions_are_accepted() -> None:
    assert len(decode(STACKED, 2, TWO + bytes(10 * 6)).frames) == 16


@pytest.mark.parametrize(("column", "offset", "row"), [("obs", 0, 0), ("obs", 28, 1), ("next_obs", 48, 0)])
@pytest.mark.parametrize("position", [6, 2**32 - 1])
def test_a_position_beyond_the_frames_is_refused_with_its_column_and_row(
    column: str, offset: int, row: int, position: int
) -> None:
    payload = TWO[:offset] + np.array(position, "<u4").tobytes() + TWO[offset + 4 :]
    message = f"column '{column}': expected frame positions below 6, found {position} in row {row}$"
    with pytest.raises(RefusedError, match=message):
        decode(STACKED, 2, payload)


def test_a_frame_that_is_not_finite_is_refused() -> None:
    schema = Schema((Column("x", "<f4", (2, 2), frames=True),))
    items: Items = {"x": np.array([[[0, 1], [2, np.nan]]], np.float32)}
    with pytest.raises(RefusedError, match="column 'frames': expected finite values, found nan in row 1"):
        decode(schema, 1, encode(schema, items, 1))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
@pytest.mark.parametrize("schema", [STACKED, STACKED.without(STACKED.columns[0]), Schema((Column("n", "<i8"),))])
def test_batches_encoded_together_are_the_payload_of_all_rows(schema: Schema, sizes: list[int]) -> None:
    buffer, batches, start = ItemBuffer(schema), [], 0
    for size in sizes:
        for n in range(start, start + size):
            buffer.add(stacked_items(np.array([n])), 1)
        batches.append(buffer.take())
        start += size
    together = encode_together(schema, batches)
    items = {c.name: stacked_items(np.arange(start))[c.name] for c in schema.columns}
    assert len(together) == len(encode(schema, items, start)), "no frame is there twice"
    for name, column in unpack(schema, decode(schema, start, together)).items():
        np.testing.assert_array_equal(column, items[name])
