from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from common.errors import ConfigError
from crossborder.curves.learning_curve import read_points
from learner.records.csv_recorder import CsvRecorder, read_numbers, read_rows
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


def write(directory: Path, text: bytes) -> Path:
    path = directory / "metrics.csv"
    path.write_bytes(text)
    return path


@pytest.mark.parametrize("cut", [b"3", b"3,", b"3,0.2"])
def test_a_row_that_a_kill_cut_off_is_left_out_also_in_the_middle_of_its_last_number(
    tmp_path: Path, cut: bytes
) -> None:
    path = write(tmp_path, b"opt_steps,loss\n1,0.5\n2,\n" + cut)
    assert read_rows(path) == (
        ["opt_steps", "loss"],
        [{"opt_steps": "1", "loss": "0.5"}, {"opt_steps": "2", "loss": ""}],
    )


def test_an_empty_file_has_neither_columns_nor_rows(tmp_path: Path) -> None:
    assert read_rows(write(tmp_path, b"")) == ([], [])


@pytest.mark.parametrize("text", [b"opt_steps\n\xff\n", b"opt_steps\n" + b"1" * 200_000 + b"\n"])
def test_a_file_that_is_not_csv_is_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.csv: expected a CSV file, found another kind of file: "):
        read_rows(write(tmp_path, text))


def test_a_value_that_is_not_a_number_is_refused_with_its_column(tmp_path: Path) -> None:
    path = write(tmp_path, b"opt_steps,loss\n1,0.5\n2,low\n")
    _, rows = read_rows(path)
    assert read_numbers(path, rows, "opt_steps") == [1, 2]
    with pytest.raises(ConfigError, match=r"metrics\.csv: column loss: expected numbers, found 'low'"):
        read_numbers(path, rows, "loss")


@pytest.mark.parametrize("value", ["nan", "1e400"])
def test_a_record_may_be_infinite_and_its_place_may_not(tmp_path: Path, value: str) -> None:
    path = write(tmp_path, f"opt_steps,loss\n1,{value}\n".encode())
    _, rows = read_rows(path)
    assert not math.isfinite(*read_numbers(path, rows, "loss"))
    (tmp_path / "metrics.csv").write_text(f"opt_steps,loss\n{value},1\n")
    message = r"metrics\.csv: column opt_steps: expected finite numbers, found (nan|inf)"
    with pytest.raises(ConfigError, match=message):
        read_numbers(path, read_rows(path)[1], "opt_steps", finite=True)
    with pytest.raises(ConfigError, match=message):
        CsvRecorder(path, resume_at=3)
    with pytest.raises(ConfigError, match=message):
        read_points(tmp_path, record="loss")
