from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.data import EVAL_KEYS, NO_MODEL, RUN_KEYS, Array, BufferedItems, Column, ModelVersion, Schema
from common.domain import Domain
from common.errors import ConfigError, SchemaMismatchError
from common.wire.codec import schema_to_pb

SCHEMA = Schema((Column("obs", "<f4", (2, 3)), Column("action", "<i8"), Column("done", "|b1")))
ROWS = Schema.of_rows(
    (Column("obs/camera", "|u1", (3, 64, 64)), Column("obs/state", "<f4", (7,)), Column("reward", "<f4"))
)


def ones(rows: int, **changes: Array) -> dict[str, Array]:
    return {c.name: np.ones((rows, *c.shape), c.dtype) for c in SCHEMA.columns} | changes


def test_the_keys_that_no_agent_may_use_are_those_that_the_page_has_before_the_agents() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    learners = page.partition("## Records")[2].partition("\n| `loss`")[0]
    cells = [line.split("|")[1] for line in learners.splitlines() if line.startswith("| `")]
    assert set(re.findall("`([a-z_]+)`", " ".join(cells))) == (RUN_KEYS | EVAL_KEYS) - {"opt_steps"}


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(np.float32, "<f4"), (np.dtype(">f8"), "<f8"), (np.int64, "<i8"), (np.uint8, "|u1"), (np.bool_, "|b1")],
)
def test_a_column_is_named_by_its_little_endian_dtype(dtype: Any, name: str) -> None:
    assert Column.of("x", dtype, (4,)) == Column("x", name, (4,))


@pytest.mark.parametrize("dtype", ["O", "U5", "S5", "M8[s]", "c8", [("a", "i4")]])
def test_a_dtype_that_cannot_travel_is_refused_with_the_name_of_its_column(dtype: Any) -> None:
    with pytest.raises(ConfigError, match=r"column 'x': expected a float, integer or bool dtype, found "):
        Column.of("x", np.dtype(dtype))


def test_a_row_has_the_bytes_of_all_its_columns() -> None:
    assert [column.row_bytes for column in SCHEMA.columns] == [24, 8, 1]
    assert SCHEMA.row_bytes == 33


def test_rows_end_with_version_first_final_and_lane() -> None:
    assert [column.name for column in ROWS.columns[-4:]] == ["version", "first", "final", "lane"]
    assert ROWS.row_bytes == 3 * 64 * 64 + 7 * 4 + 4 + 4 + 1 + 1 + 2
    assert ROWS.is_rows
    assert not SCHEMA.is_rows


@pytest.mark.parametrize("name", ["version", "first", "final", "lane"])
def test_self_contained_items_may_not_use_the_names_of_rows(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"expected other names than those of rows, found \['{name}'\]"):
        Schema((Column("x", "<f4"), Column(name, "<f4")))


def test_the_leaves_of_a_space_are_found_by_its_name() -> None:
    assert [column.name for column in ROWS.named("obs")] == ["obs/camera", "obs/state"]
    assert ROWS.named("reward") == (Column("reward", "<f4"),)
    assert ROWS.named("rew") == ()


def test_bytes_of_a_kilobyte_or_more_are_taken_for_pictures() -> None:
    assert ROWS.has_pictures
    assert not SCHEMA.has_pictures
    assert not Column("obs", "|u1", (31, 33)).is_picture
    assert Column("obs", "|u1", (32, 32)).is_picture
    assert not Column("obs", "<f4", (84, 84)).is_picture


def test_a_column_that_is_added_to_rows_stands_before_those_that_all_rows_end_with() -> None:
    more = Column("priority", "<f4")
    assert [column.name for column in ROWS.plus(more).columns][-5:] == ["priority", "version", "first", "final", "lane"]
    assert ROWS.plus(more).without(more) == ROWS


def test_buffered_items_take_the_memory_of_their_columns() -> None:
    kept = BufferedItems(3, {name: column.tobytes() for name, column in ones(3).items()})
    assert kept.n_bytes == 3 * SCHEMA.row_bytes


def test_the_hash_is_the_one_that_the_proto_file_defines() -> None:
    digest = hashlib.sha256(b"obs:<f4:2,3;action:<i8:;done:|b1:;").digest()
    assert SCHEMA.hash == int.from_bytes(digest[:8], "big")


@pytest.mark.parametrize("columns", [(), (Column("x", "<f4"), Column("x", "<f8"))])
def test_a_schema_needs_columns_with_distinct_names(columns: tuple[Column, ...]) -> None:
    with pytest.raises(ConfigError, match="at least one column and distinct names"):
        Schema(columns)


def test_empty_items_fit_their_schema() -> None:
    assert SCHEMA.count(SCHEMA.empty(4)) == 4


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_items_that_fit_are_counted(rows: int) -> None:
    assert SCHEMA.count(ones(rows)) == rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"obs": np.ones((2, 3, 2), np.float32)},
            r"'obs': expected <f4 \[2, 2, 3\], found <f4 \[2, 3, 2\]",
        ),
        ({"action": np.ones(2, np.int32)}, r"column 'action': expected <i8 .*, found <i4 \[2\]"),
        ({"action": np.ones(2, ">i8")}, r"column 'action': expected <i8 .*, found >i8 \[2\]"),
        ({"done": np.ones(3, np.bool_)}, r"column 'done': expected \|b1 \[2\], found \|b1 \[3\]"),
        ({"extra": np.ones(2)}, r"expected columns \['obs', 'action', 'done'\], found .*'extra'"),
    ],
)
def test_items_that_do_not_fit_are_refused_by_column_with_both_sides(changes: dict[str, Array], message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        SCHEMA.count(ones(2, **changes))


def test_a_missing_column_is_refused() -> None:
    items = ones(2)
    del items["done"]
    with pytest.raises(SchemaMismatchError, match=r"found \['obs', 'action'\]"):
        SCHEMA.count(items)


def test_equal_schemas_pass_and_the_first_difference_is_named() -> None:
    SCHEMA.require_equal(Schema(SCHEMA.columns), "this actor", "the learner")
    other = Schema((SCHEMA.columns[0], Column("action", "<i4"), Column("done", "|u1")))
    with pytest.raises(
        SchemaMismatchError, match=r"column 1: the learner expects action <i4 .* this actor has action <i8"
    ):
        SCHEMA.require_equal(other, "this actor", "the learner")


def test_a_column_too_many_on_either_side_is_named() -> None:
    shorter = Schema(SCHEMA.columns[:2])
    with pytest.raises(SchemaMismatchError, match=r"column 2: B expects nothing, A has done \|b1 \[\]"):
        SCHEMA.require_equal(shorter, "A", "B")
    with pytest.raises(SchemaMismatchError, match=r"column 2: B expects done \|b1 \[\], A has nothing"):
        shorter.require_equal(SCHEMA, "A", "B")


def test_a_schema_survives_json() -> None:
    for schema in (SCHEMA, ROWS):
        assert Schema.from_json(schema.to_json()) == schema


def test_an_added_column_can_be_removed_again() -> None:
    more = Column("priority", "<f4")
    assert SCHEMA.plus(more).columns == (*SCHEMA.columns, more)
    assert SCHEMA.plus(more).without(more) == SCHEMA


def test_a_domain_changes_neither_a_column_nor_the_wire_and_travels_with_the_schema() -> None:
    bounded = Schema((Column("action", "<i8", domain=Domain.between(0, 1, "<i8")),))
    plain = Schema((Column("action", "<i8"),))
    assert bounded == plain
    assert bounded.hash == plain.hash
    bounded.require_equal(plain, "this one", "the other")
    assert schema_to_pb(bounded) == schema_to_pb(plain)
    (column,) = Schema.from_json(json.loads(json.dumps(bounded.to_json()))).columns
    assert str(column.domain) == "0 to 1"


def test_a_schema_of_a_message_has_no_domains() -> None:
    (column,) = Schema.from_json([{"name": "action", "dtype": "<i8", "shape": [], "frames": False}]).columns
    assert column.domain is None


def test_a_column_of_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"column 'obs': the name is reserved, found it among \['action', 'done', 'obs'"
    ):
        SCHEMA.plus(Column("obs", "<f4"))


def test_versions_are_ordered_by_incarnation_first() -> None:
    versions = [ModelVersion(2, 0), ModelVersion(1, 900), NO_MODEL, ModelVersion(1, 5)]
    assert sorted(versions) == [NO_MODEL, ModelVersion(1, 5), ModelVersion(1, 900), ModelVersion(2, 0)]


@pytest.mark.parametrize("value", [np.float32(1), [1.0]])
def test_items_that_are_no_arrays_are_refused_by_column(value: Any) -> None:
    with pytest.raises(SchemaMismatchError, match="column 'x': expected an array with rows"):
        Schema((Column("x", "<f4"),)).count({"x": value})
