from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import RunDirectoryError
from learner.shared.rank_table import ACTORS_FILE, FILE, RankTable


def test_what_the_trainer_writes_ingest_reads(tmp_path: Path) -> None:
    written = RankTable.create(tmp_path, 1, ["a:1", "b:1"])
    read = RankTable.open(tmp_path)
    assert (read.rank, read.addresses, read.actors.tolist()) == (1, ["a:1", "b:1"], [0, 0])
    written.actors[:] = [3, 4]
    assert read.actors.tolist() == [3, 4]


def test_the_table_of_an_earlier_life_is_replaced(tmp_path: Path) -> None:
    RankTable.create(tmp_path, 1, ["a:1", "b:1"]).actors[:] = [3, 4]
    RankTable.create(tmp_path, 0, ["a:2", "b:2", "c:2"])
    read = RankTable.open(tmp_path)
    assert (read.rank, read.addresses, read.actors.tolist()) == (0, ["a:2", "b:2", "c:2"], [0, 0, 0])


def test_a_table_that_is_not_there_or_is_being_replaced_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RankTable.open(tmp_path)
    RankTable.create(tmp_path, 1, ["a:1", "b:1"])
    (tmp_path / ACTORS_FILE).unlink()
    with pytest.raises(RunDirectoryError, match="rank-actors"):
        RankTable.open(tmp_path)


@pytest.mark.parametrize("text", ["half", "[]", '{"rank": 1}', '{"rank": null, "addresses": []}'])
def test_a_table_that_is_damaged_is_named(tmp_path: Path, text: str) -> None:
    RankTable.create(tmp_path, 1, ["a:1", "b:1"])
    (tmp_path / FILE).write_text(text)
    with pytest.raises(RunDirectoryError, match=r"ranks\.json: expected a rank and addresses, found"):
        RankTable.open(tmp_path)
