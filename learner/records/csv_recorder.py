"""Records as rows of a CSV file, a run's ``metrics.csv``."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from learner.shared.metrics_file import Row, read_numbers, read_rows

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
