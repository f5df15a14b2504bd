"""Files of other layouts are refused, and the message says which release wrote them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from common.data import Column, Schema
from common.errors import RunDirectoryError, SchemaMismatchError
from learner.replay.memory import ReplayMemory
from tests.learner.replay.memories import SCHEMA, make, reopen


def test_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path)
    other = Schema((Column("n", "<i8"), Column("pair", "<f4", (3,))))
    with pytest.raises(SchemaMismatchError, match=r"column 1: .* expects pair <f4 \[2\], .* has pair <f4 \[3\]"):
        ReplayMemory(tmp_path / "replay", other, 10, create=False)


def test_another_capacity_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(SchemaMismatchError, match="expected capacity 11, found 10"):
        ReplayMemory(tmp_path / "replay", SCHEMA, 11, create=False)


@pytest.mark.parametrize("version", [3, 5, "four"])
def test_another_layout_is_refused_by_its_version(tmp_path: Path, version: object) -> None:
    make(tmp_path)
    layout = tmp_path / "replay" / "layout.json"
    layout.write_text(json.dumps({"version": version, "schema": [{"frames": True}]}))
    message = (
        f"replay: expected a replay of layout 4, found layout {re.escape(repr(version))}, which another release wrote"
    )
    with pytest.raises(RunDirectoryError, match=message):
        ReplayMemory.open_saved(tmp_path / "replay")
    with pytest.raises(RunDirectoryError, match=message):
        reopen(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"version": 4}', '{"version":4,"capacity":1,"schema":{"a":1}}'])
def test_a_layout_that_cannot_be_read_is_an_error_with_its_place(tmp_path: Path, text: str) -> None:
    make(tmp_path)
    (tmp_path / "replay" / "layout.json").write_text(text)
    with pytest.raises(RunDirectoryError, match="replay: no readable replay memory"):
        ReplayMemory.open_saved(tmp_path / "replay")
    with pytest.raises(RunDirectoryError, match="replay: no readable replay memory"):
        ReplayMemory(tmp_path / "replay", SCHEMA, 10, create=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("capacity", "9"),
        ("capacity", 0),
        ("slack", -1),
        ("began", 1.5),
        ("steps_began", True),
        ("schema", {"n": "<i8"}),
        ("schema", [{"name": "n", "dtype": "|O", "shape": []}]),
        ("schema", [{"name": "n", "dtype": "<i8", "shape": [-1]}]),
        ("schema", [{"name": 3, "dtype": "<i8", "shape": []}]),
    ],
)
def test_values_of_another_kind_are_refused_where_the_file_is_read(tmp_path: Path, key: str, value: object) -> None:
    make(tmp_path)
    layout = tmp_path / "replay" / "layout.json"
    layout.write_text(json.dumps({**json.loads(layout.read_text()), key: value}))
    with pytest.raises(RunDirectoryError, match=r"no readable replay memory: layout\.json: .*(rows|column|indices)"):
        ReplayMemory.open_saved(tmp_path / "replay")
