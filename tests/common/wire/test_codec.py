from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.data import Column, Items, Schema
from common.errors import RefusedError
from common.wire.codec import buffer, decode, encode, encode_together, schema_from_pb, schema_to_pb, split
from common.wire.pb import crossborder_pb2 as pb
from tests.frames import SCHEMA as PICTURES
from tests.frames import picture_rows

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
    decoded = decode(schema, rows, payload)
    assert schema.count(decoded) == rows
    for name, column in items.items():
        assert decoded[name].tobytes() == column.tobytes()


@given(filled(), st.integers(0, 5))
def test_only_the_first_rows_are_encoded(case: tuple[Schema, int, Items], rows: int) -> None:
    schema, available, items = case
    rows = min(rows, available)
    decoded = decode(schema, rows, encode(schema, items, rows))
    for name, column in items.items():
        np.testing.assert_array_equal(decoded[name], column[:rows])


@given(SCHEMAS | SCHEMAS.map(lambda schema: Schema.of_rows(schema.columns)))
def test_any_schema_survives_the_wire_with_its_hash(schema: Schema) -> None:
    message = pb.Schema.FromString(schema_to_pb(schema).SerializeToString())
    assert schema_from_pb(message) == schema
    assert message.hash == schema.hash
    assert schema_from_pb(message).is_rows == schema.is_rows


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
    decoded = decode(PAIR, 1, bytes(16))
    with pytest.raises(ValueError, match="read-only"):
        decoded["n"][0] = 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
@pytest.mark.parametrize("schema", [PICTURES, PICTURES.without(PICTURES.columns[0])])
def test_batches_encoded_together_are_the_payload_of_all_rows(schema: Schema, sizes: list[int]) -> None:
    ends = np.cumsum(sizes)
    parts = [picture_rows(np.arange(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    batches = [buffer(schema, part, size) for part, size in zip(parts, sizes, strict=True)]
    assert b"".join(encode_together(schema, batches)) == encode(
        schema, picture_rows(np.arange(ends[-1])), int(ends[-1])
    )


@given(st.integers(1, 20), st.integers(1, 25))
def test_a_batch_is_split_into_parts_that_are_small_enough_and_keep_the_order(rows: int, most: int) -> None:
    whole = buffer(PICTURES, picture_rows(np.arange(rows)), rows)
    parts = split(PICTURES, whole, most)
    assert [part.rows for part in parts] == [most] * (rows // most) + [rows % most] * (rows % most > 0)
    assert b"".join(encode_together(PICTURES, parts)) == b"".join(encode_together(PICTURES, [whole]))
    for part in parts:
        assert part.n_bytes == part.rows * PICTURES.row_bytes


def test_a_batch_that_is_small_enough_is_not_copied() -> None:
    whole = buffer(PICTURES, picture_rows(np.arange(3)), 3)
    assert split(PICTURES, whole, 3)[0] is whole


def test_a_boolean_that_is_neither_0_nor_1_is_refused() -> None:
    payload = bytearray(encode(PICTURES, picture_rows(np.arange(2)), 2))
    payload[-5] = 2  # The last row's ``final``, before two lanes of two bytes.
    with pytest.raises(RefusedError, match="column 'final': expected booleans of 0 or 1, found another byte"):
        decode(PICTURES, 2, bytes(payload))
