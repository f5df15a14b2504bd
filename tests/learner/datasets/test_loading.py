from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from common.data import Column, Items, Schema
from common.domain import Domain
from common.errors import ConfigError, DatasetError, RunDirectoryError, SchemaMismatchError
from common.parts import Parts
from learner.datasets.loading import NOTE, load_dataset, open_source
from learner.replay.memory import ReplayMemory
from learner.replay.ring import read_ring
from learner.replay.value_rules import ValueRules
from tests.learner.datasets.saved import NUMBERED, parts_of, save_batches, save_replay
from tests.parts import counting_schema, expected_rows

SCHEMA = Schema((Column("n", "<i8"), Column.of("x", np.float32, domain=Domain.between(-1, 1, np.float32))))


class Chunks:
    """A dataset of self-contained items."""

    name = "data/any"

    def __init__(self, *lengths: int, x: float = 0.0) -> None:
        self._lengths, self._x = lengths, x

    def __len__(self) -> int:
        return sum(self._lengths)

    def check(self, parts: Parts) -> None:
        assert parts.schema == SCHEMA

    def items(self, parts: Parts) -> Iterator[tuple[int, Items]]:
        self._first = 0
        for length in self._lengths:
            n = np.arange(self._first, self._first + length)
            yield 0, {"n": n, "x": np.where(n == 7, np.float32(self._x), np.float32(0))}
            self._first += length

    def name_row(self, row: int) -> str:
        return f"row {self._first + row}"


@pytest.fixture
def memory(tmp_path: Path) -> ReplayMemory:
    return ReplayMemory(tmp_path / "replay", SCHEMA, 50, create=True)


def load(dataset: Chunks, memory: ReplayMemory, *, whole: bool = False, kept: bool = False) -> list[int]:
    """The numbers of the items in the replay afterwards, oldest first."""
    rules = ValueRules(SCHEMA, {"x": "count"} if kept else {"x": "refuse"})
    load_dataset(dataset, parts_of(SCHEMA), memory, rules, whole=whole)
    return [int(n) for n in read_ring(memory.columns["n"], memory.first(), memory.committed)]


def test_chunks_of_any_size_are_stored_in_order(memory: ReplayMemory) -> None:
    assert load(Chunks(20, 3, 8), memory) == list(range(31))


def test_short_episodes_are_stored_together_so_that_the_log_has_room_for_all_batches(memory: ReplayMemory) -> None:
    assert load(Chunks(*[1] * 40), memory) == list(range(40))
    assert [batch.rows for batch in memory.log.read_all()] == [40]


def test_of_a_dataset_larger_than_the_replay_the_newest_items_stay(memory: ReplayMemory) -> None:
    assert load(Chunks(40, 40), memory) == list(range(30, 80))


def test_a_dataset_larger_than_the_replay_is_refused_where_all_of_it_is_asked_for(memory: ReplayMemory) -> None:
    with pytest.raises(DatasetError, match=r"at most 50 rows, found more in its 80; raise replay\.capacity"):
        load(Chunks(40, 40), memory, whole=True)


def test_a_dataset_without_items_is_refused(memory: ReplayMemory) -> None:
    with pytest.raises(DatasetError, match="dataset data/any: expected rows to learn from, found none"):
        load(Chunks(), memory)


def test_a_value_that_is_refused_is_named_with_the_dataset_and_the_item(memory: ReplayMemory) -> None:
    with pytest.raises(DatasetError, match=r"dataset data/any: column 'x': .* found 3.* in row 7"):
        load(Chunks(5, 20, x=3.0), memory)


def test_values_that_are_kept_outside_their_bounds_are_counted_in_a_warning(
    memory: ReplayMemory, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(load(Chunks(20, x=3.0), memory, kept=True)) == 20
    assert caplog.messages == ["dataset data/any: column 'x': 1 values are outside the bounds of its space"]


COUNTING = counting_schema()
RULES = ValueRules(COUNTING, {})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """An earlier run of 40 steps."""
    save_batches(tmp_path / "run", COUNTING, 100, [(1, expected_rows(0, 40))])
    return tmp_path / "run"


def test_a_source_is_copied_once_and_has_the_rows_and_links_of_its_dataset(run: Path, tmp_path: Path) -> None:
    for _ in range(2):
        memory = open_source("demos", str(run), tmp_path, parts_of(COUNTING), RULES)
        assert (memory.steps, memory.drawable) == (40, 39)
        assert memory.directory == tmp_path / "sources" / "demos"
        if run.exists():
            run.rename(tmp_path / "elsewhere")  # When the run is resumed, the dataset may be gone.


def test_a_resumed_run_does_not_take_its_copy_for_another_dataset(run: Path, tmp_path: Path) -> None:
    open_source("demos", str(run), tmp_path, parts_of(COUNTING), RULES)
    with pytest.raises(ConfigError, match=r"replay\.sources\.demos\.dataset: expected '.*run', .* found 'other'"):
        open_source("demos", "other", tmp_path, parts_of(COUNTING), RULES)


@pytest.mark.parametrize("text", ["half", "{}", "[]"])
def test_a_damaged_note_of_the_dataset_is_named(run: Path, tmp_path: Path, text: str) -> None:
    memory = open_source("demos", str(run), tmp_path, parts_of(COUNTING), RULES)
    (memory.directory / NOTE).write_text(text)
    with pytest.raises(RunDirectoryError, match=r"demos/dataset\.json: expected the name of a dataset, found"):
        open_source("demos", str(run), tmp_path, parts_of(COUNTING), RULES)


def test_a_copy_that_was_killed_is_made_again(run: Path, tmp_path: Path) -> None:
    draft = tmp_path / "sources" / ".demos.part"
    draft.mkdir(parents=True)
    (draft / "header").write_text("half")
    assert open_source("demos", str(run), tmp_path, parts_of(COUNTING), RULES).steps == 40


def test_a_dataset_of_other_rows_is_refused(tmp_path: Path) -> None:
    save_replay(tmp_path / "items", 10)
    with pytest.raises(SchemaMismatchError, match="this run expects obs"):
        open_source("demos", str(tmp_path / "items"), tmp_path, parts_of(COUNTING), RULES)
    assert not [*(tmp_path / "sources").iterdir()], "half a copy would fill the disk"


def copied(source: Path, to: Path) -> Path:
    """Copy the directory of a run with ``cp -r``; return that of the source ``demos``."""
    shutil.copytree(source / "sources", to / "sources")
    return to / "sources" / "demos"


def test_a_source_is_compared_once_after_the_run_was_copied(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_source("demos", str(run), tmp_path, parts_of(COUNTING), RULES)
    demos = copied(tmp_path, tmp_path / "copy")
    following = demos / "links-next"  # It has no checksum.
    following.write_bytes(b"\0" * following.stat().st_size)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            memory = open_source("demos", str(run), tmp_path / "copy", parts_of(COUNTING), RULES)
            assert (memory.steps, memory.drawable) == (40, 39)
            assert memory.links is not None
            assert memory.links.next[:39].all()
    assert [message for message in caplog.messages if "compared with its checksum" in message] == [
        f"{demos}: its files were copied: every batch is compared with its checksum"
    ]


@pytest.mark.parametrize("file", ["column-obs", "links-previous", "batches", "header"])
def test_of_a_source_that_was_copied_in_part_nothing_is_drawn(run: Path, tmp_path: Path, file: str) -> None:
    open_source("demos", str(run), tmp_path, parts_of(COUNTING), RULES)
    demos = copied(tmp_path, tmp_path / "copy")
    content = (demos / file).read_bytes()
    (demos / file).write_bytes(b"\0" * len(content))
    with pytest.raises(RunDirectoryError, match="demos"):
        open_source("demos", str(run), tmp_path / "copy", parts_of(COUNTING), RULES)
    (demos / file).write_bytes(content)
    assert open_source("demos", str(run), tmp_path / "copy", parts_of(COUNTING), RULES).steps == 40


def test_the_error_of_a_damaged_source_names_both_ways_out(run: Path, tmp_path: Path) -> None:
    memory = open_source("demos", str(run), tmp_path, parts_of(COUNTING), RULES)
    demos = copied(tmp_path, tmp_path / "copy")
    with (demos / "column-obs").open("r+b") as file:
        file.seek(8 * 20)
        file.write(b"torn")
    with pytest.raises(RunDirectoryError, match=rf"copy {demos} again, or remove it to have the dataset read again"):
        open_source("demos", str(run), tmp_path / "copy", parts_of(COUNTING), RULES)
    shutil.rmtree(demos)
    assert open_source("demos", str(run), tmp_path / "copy", parts_of(COUNTING), RULES).steps == memory.steps


def test_a_power_cut_leaves_a_whole_note_of_the_dataset(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr("learner.replay.memory.sync", lambda path: synced.append(path.name))
    open_source("demos", str(run), tmp_path, parts_of(COUNTING), RULES)
    assert NOTE in synced


def test_a_dataset_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="found 'no/such'"):
        open_source("demos", "no/such", tmp_path, parts_of(NUMBERED), RULES)
