"""Reading ``metrics.csv``, the file of a run's records."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from common.errors import ConfigError

Row = Mapping[str, str]


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
