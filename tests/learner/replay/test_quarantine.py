from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from learner.replay.quarantine import (
    MAX_RECORDS,
    MAX_VALUE_BYTES,
    RETRY_SECONDS,
    Quarantine,
    Record,
    read_records,
    summarize_row,
)
from tests.clocks import Clock


def add(quarantine: Quarantine, message: str, sender: str = "") -> bool:
    if not quarantine.has_room(sender):
        return False
    quarantine.add(Record(reason="bounds", message=message, sender=sender))
    return True


def test_the_newest_records_are_kept_over_restarts(tmp_path: Path) -> None:
    clock = Clock()
    for life in range(3):
        quarantine = Quarantine(tmp_path, "ingest", clock)
        for i in range(MAX_RECORDS // 2):
            assert add(quarantine, f"{life}.{i}")
        quarantine.write()
    found = [record.message for record in read_records(tmp_path, "ingest")]
    assert len(found) == MAX_RECORDS
    assert (found[0], found[-1]) == ("1.0", f"2.{MAX_RECORDS // 2 - 1}")
    assert read_records(tmp_path, "trainer") == []


def test_a_flood_is_counted_and_neither_kept_nor_written(tmp_path: Path) -> None:
    clock = Clock()
    quarantine = Quarantine(tmp_path, "ingest", clock)
    assert sum(add(quarantine, "flood") for _ in range(10 * MAX_RECORDS)) == MAX_RECORDS
    quarantine.tick()
    before = (tmp_path / "quarantine-ingest.json").stat().st_mtime_ns
    clock.now += 0.5
    assert not add(quarantine, "too soon")
    clock.now += 0.5
    assert add(quarantine, "later")
    clock.now -= 0.1
    quarantine.tick()
    assert (tmp_path / "quarantine-ingest.json").stat().st_mtime_ns == before, "once a second at most"
    clock.now += 0.2
    quarantine.tick()
    newest = read_records(tmp_path, "ingest")[-1]
    assert (newest.message, newest.missed) == ("later", 9 * MAX_RECORDS + 1)


def test_a_flood_of_one_sender_costs_others_no_record(tmp_path: Path) -> None:
    clock = Clock()
    quarantine = Quarantine(tmp_path, "ingest", clock)
    add(quarantine, "before", "robot-7")
    for _ in range(3 * MAX_RECORDS):
        clock.now += 1.0
        assert add(quarantine, "flood", "robot-8")
    assert sum(add(quarantine, "flood", "robot-8") for _ in range(2 * MAX_RECORDS)) < MAX_RECORDS
    assert add(quarantine, "after", "robot-7")
    quarantine.write()
    kept = read_records(tmp_path, "ingest")
    assert len(kept) == MAX_RECORDS
    assert [record.message for record in kept if record.sender == "robot-7"] == ["before", "after"]


def test_a_record_is_small_whatever_a_row_holds(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path, "trainer")
    columns = {f"column {i}": np.zeros((1, 7)) for i in range(MAX_VALUE_BYTES)}
    quarantine.add(Record("found bad", "x" * 100_000, values=summarize_row(columns, 0)))
    quarantine.write()
    assert (tmp_path / "quarantine-trainer.json").stat().st_size < 2 * MAX_VALUE_BYTES


def test_a_row_is_shown_as_json_that_others_can_read() -> None:
    items = {"reward": np.array([np.nan]), "obs": np.array([[1.5, -np.inf]]), "picture": np.zeros((1, 3, 3), np.uint8)}
    shown = summarize_row(items, 0)
    assert shown["reward"] == "nan"
    assert shown["obs"] == [1.5, "-inf"]
    assert shown["picture"] == {"shape": [3, 3], "min": 0, "mean": 0.0, "max": 0}
    json.dumps(shown, allow_nan=False)


def test_a_file_that_cannot_be_read_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "quarantine-ingest.json").write_text('[{"reason": ')
    quarantine = Quarantine(tmp_path, "ingest")
    add(quarantine, "the first")
    quarantine.write()
    assert [record.message for record in read_records(tmp_path, "ingest")] == ["the first"]


def test_a_failed_write_is_logged_and_tried_again_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    quarantine = Quarantine(tmp_path / "shared", "ingest", clock)
    add(quarantine, "found on a full disk")
    quarantine.tick()
    (tmp_path / "shared").mkdir()
    quarantine.tick()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["the quarantine is not written"]
    assert read_records(tmp_path / "shared", "ingest") == []
    clock.now += RETRY_SECONDS
    quarantine.tick()
    assert [record.message for record in read_records(tmp_path / "shared", "ingest")] == ["found on a full disk"]
