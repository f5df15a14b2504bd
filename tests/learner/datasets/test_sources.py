from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError, DatasetError, RunDirectoryError, SchemaMismatchError
from learner.datasets.sources import NOTE, open_source
from learner.replay.value_rules import ValueRules
from tests.learner.datasets.saved import NUMBERED, parts_of, save_batches, save_replay
from tests.parts import counting_schema, expected_rows

COUNTING = counting_schema()
RULES = ValueRules(COUNTING, {}, {})


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
