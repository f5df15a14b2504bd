"""Reading ``metrics.csv``, the file of a run's records."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from common.errors import ConfigError

Row = Mapping[str, str]


def read_rows(path: Path) -> tuple[list[str], list[Row]]:
    """The columns of a file and its complete rows: a kill may have cut the last row off.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is no CSV file.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        try:
            return list(reader.fieldnames or ()), [row for row in reader if _is_complete(row)]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ConfigError(f"{path}: expected a CSV file, found another: {error}") from error


def read_numbers(path: Path, rows: Iterable[Row], column: str) -> list[float]:
    """The numbers in a column.

    Args:
        path: the file from which the rows come.
        rows: those of its rows that have a number there.
        column: the name of the column.

    Raises:
        ConfigError: a value is no number.
    """
    return [_number(path, column, row.get(column, "")) for row in rows]


def _number(path: Path, column: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"{path}: column {column}: expected numbers, found '{text}'") from error


def _is_complete(row: Mapping[str | None, object]) -> bool:
    return None not in row and None not in row.values()
