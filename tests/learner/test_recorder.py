from __future__ import annotations

import csv
from pathlib import Path

from learner.recorder import CsvRecorder


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


def test_what_was_flushed_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
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
