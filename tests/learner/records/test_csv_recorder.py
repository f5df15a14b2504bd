from __future__ import annotations

import csv
from pathlib import Path

import pytest

from learner.records.csv_recorder import CsvRecorder
from tests.disks import Disk


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_record_is_a_row_with_its_opt_step(tmp_path: Path) -> None:
    recorder = CsvRecorder(tmp_path / "m.csv")
    recorder.write(2**40, {"eval_reward": 1.25})
    recorder.write(2**40 + 1, {"samples_total": 7.0})
    recorder.close()
    first, second = read(tmp_path / "m.csv")
    assert (first["opt_steps"], first["eval_reward"], first["samples_total"]) == (str(2**40), "1.25", "")
    assert (second["opt_steps"], second["eval_reward"], second["samples_total"]) == (str(2**40 + 1), "", "7.0")


def test_a_key_seen_later_becomes_a_column_and_nothing_before_it_is_lost(tmp_path: Path) -> None:
    recorder = CsvRecorder(tmp_path / "m.csv")
    recorder.write(1, {"samples_total": 7.0})
    recorder.write(2, {"loss": 0.5})
    recorder.close()
    first, second = read(tmp_path / "m.csv")
    assert (first["samples_total"], first["loss"]) == ("7.0", "")
    assert second["loss"] == "0.5"


def test_flushed_rows_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    recorder = CsvRecorder(tmp_path / "m.csv")
    recorder.write(1, {"loss": 0.5})
    recorder.flush()
    assert len(read(tmp_path / "m.csv")) == 1
    recorder.close()


def test_a_resumed_run_goes_on_below_the_rows_up_to_its_checkpoint(tmp_path: Path) -> None:
    recorder = CsvRecorder(tmp_path / "m.csv")
    for opt_steps in (10, 20, 30):
        recorder.write(opt_steps, {"loss": opt_steps / 10})
    recorder.close()
    with (tmp_path / "m.csv").open("a") as file:
        file.write("15,")  # A kill may cut a row off anywhere.
    resumed = CsvRecorder(tmp_path / "m.csv", resume_at=20)
    resumed.write(25, {"loss": 2.5, "new": 1.0})
    resumed.close()
    assert [(row["opt_steps"], row["loss"]) for row in read(tmp_path / "m.csv")] == [
        ("10", "1.0"),
        ("20", "2.0"),
        ("25", "2.5"),
    ]


def test_on_a_full_disk_no_row_is_torn_and_later_rows_are_written(disk: Disk) -> None:
    path = disk.path / "m.csv"
    recorder = CsvRecorder(path)
    recorder.write(1, {"loss": 0.5})
    recorder.flush()
    disk.fill()

    def record() -> None:
        for opt_steps in range(2, 1000):
            recorder.write(opt_steps, {"loss": 0.5})
            recorder.flush()

    with pytest.raises(OSError, match="No space left"):
        record()
    with pytest.raises(OSError, match="No space left"):
        recorder.write(1000, {"new": 1.0})
    disk.clear()
    recorder.write(1001, {"new": 1.0})
    recorder.close()
    rows = read(path)
    assert all(None not in row.values() and len(row) == 14 for row in rows)
    steps = [int(row["opt_steps"]) for row in rows]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (1, 1001)
    assert not path.with_name(".m.csv.part").exists()
