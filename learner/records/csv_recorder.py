"""Where records go: a CSV file."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

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
"""Keys that the learner itself records; an agent's keys follow as they come."""


class CsvRecorder:
    """One row a record: ``opt_steps`` first, then a column per key; a key seen later starts the file anew.

    Args:
        path: the file.
        resume_at: a run goes on at this opt step: rows up to here stay, later ones never happened; None begins anew.
    """

    def __init__(self, path: Path, resume_at: int | None = None) -> None:
        self._path = path
        self._columns = ["opt_steps", *KEYS]
        rows: list[dict[str, str]] = []
        if resume_at is not None and path.exists():
            rows = [row for row in self._read() if _is_until(row, resume_at)]
        self._rewrite(self._columns, rows)

    def _read(self) -> list[dict[str, str]]:
        """All rows of the file; its columns become ours."""
        with self._path.open(newline="") as file:
            reader = csv.DictReader(file)
            self._columns = list(reader.fieldnames or self._columns)
            return list(reader)

    def _rewrite(self, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
        """Put a file with these columns and rows in the place of the present one, and go on writing there.

        Raises:
            OSError: it cannot be written; the present one stays.
        """
        part = self._path.with_name(f".{self._path.name}.part")
        with part.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
        part.rename(self._path)
        self._columns = list(columns)
        self._file = self._path.open("a", newline="")
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


def _is_until(row: Mapping[str, str | None], opt_steps: int) -> bool:
    """Whether a row is whole (a kill may have cut the last one off) and of no later step."""
    return None not in row.values() and int(row["opt_steps"] or 0) <= opt_steps
