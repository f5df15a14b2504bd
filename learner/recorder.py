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
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns = ["opt_steps", *KEYS]
        self._file = path.open("w", newline="")
        self._writer = self._start()

    def _start(self) -> csv.DictWriter[str]:
        writer = csv.DictWriter(self._file, self._columns, restval="")
        writer.writeheader()
        return writer

    def write(self, opt_steps: int, record: Mapping[str, float]) -> None:
        new = [key for key in record if key not in self._columns]
        if new:
            self._widen(new)
        self._writer.writerow({"opt_steps": opt_steps, **record})

    def _widen(self, new: Sequence[str]) -> None:
        self._file.close()
        with self._path.open(newline="") as old:
            rows = list(csv.DictReader(old))
        self._columns.extend(new)
        part = self._path.with_name(f".{self._path.name}.part")
        self._file = part.open("w", newline="")
        self._writer = self._start()
        self._writer.writerows(rows)
        self._file.flush()
        part.rename(self._path)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.flush()
        os.fsync(self._file.fileno())
        self._file.close()
