from __future__ import annotations

import math
from pathlib import Path

import pytest

from common.errors import ConfigError
from crossborder.curves.learning_curve import read_points
from learner.records.csv_recorder import CsvRecorder
from learner.shared.metrics_file import read_numbers, read_rows


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
