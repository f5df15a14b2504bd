from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import RunDirectoryError
from learner.ingest.cordons import NOBODY, Cordons, Selection

RACK = Selection(hosts=frozenset({"cpu-1", "cpu-2"}))
THIRD = Selection(actor_ids=frozenset({3}))
EVERYBODY = Selection(everybody=True)


def test_a_selection_covers_actors_by_their_id_by_the_whole_name_of_their_host_or_all() -> None:
    assert [RACK.covers(3, host) for host in ("cpu-1", "cpu-2", "cpu-12", "cpu")] == [True, True, False, False]
    assert [THIRD.covers(actor_id, "cpu-1") for actor_id in (3, 2, None)] == [True, False, False]
    assert EVERYBODY.covers(None, "anywhere")
    assert not NOBODY.covers(0, "")


def test_selections_are_added_and_taken_away() -> None:
    both = RACK.plus(THIRD)
    assert both.covers(3, "cpu-9")
    assert both.covers(9, "cpu-2")
    assert both.without(RACK) == THIRD
    assert both.plus(EVERYBODY).without(RACK) == THIRD.plus(EVERYBODY), "all stays, until all is taken away"
    assert both.plus(EVERYBODY).without(EVERYBODY) == NOBODY


@pytest.mark.parametrize(
    ("actors", "text"),
    [(NOBODY, "none"), (RACK.plus(THIRD), "actors 3 and hosts cpu-1, cpu-2"), (EVERYBODY, "all")],
)
def test_a_selection_is_named_for_people(actors: Selection, text: str) -> None:
    assert str(actors) == text


def test_cordons_outlive_the_process_and_a_drain_cordons_too(tmp_path: Path) -> None:
    first = Cordons(tmp_path / "cordons.json")
    assert (first.cordoned, first.drained) == (NOBODY, NOBODY)
    first.cordon(THIRD)
    first.drain(RACK)
    second = Cordons(tmp_path / "cordons.json")
    assert (second.cordoned, second.drained) == (RACK.plus(THIRD), RACK)
    second.uncordon(RACK)
    third = Cordons(tmp_path / "cordons.json")
    assert (third.cordoned, third.drained) == (THIRD, NOBODY)


def test_cordons_that_cannot_be_kept_are_not_in_force(tmp_path: Path) -> None:
    cordons = Cordons(tmp_path / "gone" / "cordons.json")
    with pytest.raises(RunDirectoryError, match=r"cordons\.json: cannot be written: No such file or directory"):
        cordons.drain(RACK)
    assert (cordons.cordoned, cordons.drained) == (NOBODY, NOBODY)


@pytest.mark.parametrize("text", ["", "[]", '{"cordoned": {"actor_ids": ["x"], "hosts": [], "all": false}}'])
def test_a_damaged_file_cordons_nobody_and_is_named_in_the_log(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cordons.json").write_text(text)
    assert Cordons(tmp_path / "cordons.json").cordoned == NOBODY
    assert "cordons.json is damaged" in caplog.text


def test_a_file_that_cannot_be_read_is_no_reason_to_let_everybody_in(tmp_path: Path) -> None:
    (tmp_path / "cordons.json").mkdir()
    with pytest.raises(RunDirectoryError, match=r"cordons\.json: cannot be read: Is a directory"):
        Cordons(tmp_path / "cordons.json")
