"""``layout.json`` of a replay: its columns, its room and the version of its files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from common.data import Schema
from common.depth import parse_json
from common.errors import RunDirectoryError, SchemaMismatchError
from learner.shared.durable import replace_text

LAYOUT_VERSION: Final = 4
_COUNTS: Final = ("capacity", "slack", "began", "steps_began")


@dataclass(frozen=True)
class Layout:
    """Columns, room and version of the files of a replay.

    Args:
        schema: columns of a row.
        capacity: rows kept.
        slack: slots beyond ``capacity``.
        began: absolute index of the first row; above 0 if an earlier replay of the run was lost.
        steps_began: steps that count as stored before the first row.
        version: of the files.
    """

    schema: Schema
    capacity: int
    slack: int
    began: int = 0
    steps_began: int = 0
    version: int = LAYOUT_VERSION

    def write(self, directory: Path) -> None:
        """Write ``layout.json``, whole or not at all, and sync it.

        Raises:
            OSError: it cannot be written.
        """
        replace_text(directory / "layout.json", json.dumps({**asdict(self), "schema": self.schema.to_json()}))

    @classmethod
    def read(cls, directory: Path) -> Layout:
        """Read ``layout.json``.

        Raises:
            RunDirectoryError: the file is missing or cannot be read, or another release wrote it.
        """
        try:
            found = parse_json((directory / "layout.json").read_text())
            _require_version(found["version"], directory)
            schema = Schema.from_json(found["schema"])
            return cls(schema, **{name: _as_count(name, found[name]) for name in _COUNTS})
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunDirectoryError(f"{directory}: no readable replay memory: layout.json: {error!r}") from error

    def require_same(self, found: Layout, directory: Path) -> None:
        """Check that the files in ``directory`` have this layout; slack and beginning may differ.

        Raises:
            SchemaMismatchError: the files have other columns, or room for another number of rows.
        """
        self.schema.require_equal(found.schema, "this run", f"replay in {directory}")
        if self.capacity != found.capacity:
            raise SchemaMismatchError(f"{directory}: expected capacity {self.capacity}, found {found.capacity}")


def _as_count(name: str, value: object) -> int:
    """A value of ``layout.json``.

    Raises:
        ValueError: it is no count, or a capacity of 0.
    """
    if type(value) is not int or value < (name == "capacity"):
        raise ValueError(f"{name}: expected a whole number of rows, found {value!r}")
    return value


def _require_version(version: object, directory: Path) -> None:
    """Raise a RunDirectoryError for files of another version."""
    if version == LAYOUT_VERSION:
        return
    raise RunDirectoryError(
        f"{directory}: expected a replay of layout {LAYOUT_VERSION}, found layout {version!r}, which another "
        "release wrote; only that release can resume its runs"
    )
