"""Records as rows of a CSV file, a run's ``metrics.csv``."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from common.errors import ConfigError

KEYS = (
    "seconds",
    "samples_total",
    "opt_steps_per_sec",
    "samples_per_sec",
    "samples_per_opt_steps",
    "train_return",
    "train_length",
    "eval_reward",
    "eval_reward_std",
    "eval_reward_min",
    "eval_reward_max",
)
"""The columns of every file, which the learner itself records; a column for each key of the agent follows."""
Row = Mapping[str, str]


class CsvRecorder:
    """A ``Recorder`` that writes one row for each record: ``opt_steps``, then a column for each key.

    A CSV file has one heading, so the recorder rewrites the file with one more column when a new key comes.

    Args:
        path: of the file.
        resume_at: the opt step at which a resumed run goes on. Rows up to this step stay; the run takes the steps of
            later rows again, so these rows are removed. None begins a new file.

    Raises:
        OSError: the file cannot be read or written.
        ConfigError: the file that is there is no CSV file, or has an opt step that is no number.
    """

    def __init__(self, path: Path, resume_at: int | None = None) -> None:
        self._path = path
        self._columns = ["opt_steps", *KEYS]
        rows: list[Row] = []
        if resume_at is not None and path.exists():
            rows = self._read()
            steps = read_numbers(path, rows, "opt_steps", finite=True)
            rows = [row for row, step in zip(rows, steps, strict=True) if step <= resume_at]
        self._rewrite(self._columns, rows)

    def _read(self) -> list[Row]:
        """All rows of the file, whose columns become those of this recorder."""
        columns, rows = read_rows(self._path)
        self._columns = columns or self._columns
        return rows

    def _rewrite(self, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Replace the file by one with these columns and rows, and go on writing to the new file.

        The new file is complete before it gets the old one's name: a kill leaves one of the two whole.

        Raises:
            OSError: the new file cannot be written; the old one stays.
        """
        part = self._path.with_name(f".{self._path.name}.part")
        with part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
        part.rename(self._path)
        self._columns = list(columns)
        self._file = self._path.open("a", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, self._columns, restval="")

    def write(self, opt_steps: int, record: Mapping[str, float]) -> None:
        new = [key for key in record if key not in self._columns]
        if new:
            self._widen(new)
        self._writer.writerow({"opt_steps": opt_steps, **record})

    def _widen(self, new: Sequence[str]) -> None:
        before = self._file
        before.flush()
        self._rewrite([*self._columns, *new], self._read())
        before.close()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def read_complete_lines(path: Path) -> str:
    """The text of a file up to its last line break. A kill may have cut the last row, also in the middle of a number.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not UTF-8 text.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise _not_csv(path, error) from error
    return text[: text.rfind("\n") + 1]


def read_rows(path: Path) -> tuple[list[str], list[Row]]:
    """The columns of a file and its complete rows.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a CSV file.
    """
    reader = csv.DictReader(io.StringIO(read_complete_lines(path), newline=""))
    try:
        return list(reader.fieldnames or ()), [row for row in reader if _is_complete(row)]
    except csv.Error as error:
        raise _not_csv(path, error) from error


def _not_csv(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"{path}: expected a CSV file, found another kind of file: {error}")


def read_numbers(path: Path, rows: Iterable[Row], column: str, *, finite: bool = False) -> list[float]:
    """The numbers in a column; ``finite``: neither NaN nor infinity, which only a record may be.

    Raises:
        ConfigError: a value is not such a number.
    """
    found = [_number(path, column, row.get(column, "")) for row in rows]
    if finite and (others := [number for number in found if not math.isfinite(number)]):
        raise ConfigError(f"{path}: column {column}: expected finite numbers, found {others[0]}")
    return found


def _number(path: Path, column: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"{path}: column {column}: expected numbers, found '{text}'") from error


def _is_complete(row: Mapping[str | None, object]) -> bool:
    return None not in row and None not in row.values()
