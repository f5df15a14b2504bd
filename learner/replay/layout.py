"""``layout.json`` of a replay: which columns there are, and room for how many items."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from common.data import Schema
from common.errors import RunDirectoryError, SchemaMismatchError
from learner.shared.durable import replace_text

LAYOUT_VERSION: Final = 3
_READABLE: Final = (2, LAYOUT_VERSION)
"""Layout 2, of release 0.1, has a journal of one batch where layout 3 has a log of many."""


@dataclass(frozen=True)
class Layout:
    """What the files of a replay are like.

    Args:
        schema: columns of an item.
        capacity: items kept.
        frame_capacity: frames kept; 0 where the schema has none.
        slack: slots beyond ``capacity``.
        began: absolute index of the first item; above 0 where an earlier replay of the run was lost.
        version: of the layout.
    """

    schema: Schema
    capacity: int
    frame_capacity: int
    slack: int
    began: int = 0
    version: int = LAYOUT_VERSION

    def write(self, directory: Path) -> None:
        """Write it whole, as of the present version; from now on it lasts.

        Raises:
            OSError: it cannot be written.
        """
        values = {**asdict(self), "schema": self.schema.to_json(), "version": LAYOUT_VERSION}
        replace_text(directory / "layout.json", json.dumps(values))

    @classmethod
    def read(cls, directory: Path) -> Layout:
        """The layout of files that exist.

        Raises:
            RunDirectoryError: there is none that can be read, or its version is not known here.
        """
        try:
            found = json.loads((directory / "layout.json").read_text())
            version = found["version"]
            if version not in _READABLE:
                raise RunDirectoryError(f"{directory}: expected layout 2 to {LAYOUT_VERSION}, found {version!r}")
            schema, room = Schema.from_json(found["schema"]), found.get("frame_capacity", 0)
            return cls(schema, found["capacity"], room, found.get("slack", 0), found.get("began", 0), version)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunDirectoryError(f"{directory}: no readable replay memory: layout.json: {error!r}") from error

    def require_same(self, found: Layout, directory: Path) -> None:
        """See that files are as expected; their slack may differ.

        Raises:
            SchemaMismatchError: they hold other columns, or more or less of them.
        """
        self.schema.require_equal(found.schema, "this run", f"replay in {directory}")
        for name in ("capacity", "frame_capacity"):
            mine, theirs = getattr(self, name), getattr(found, name)
            if mine != theirs:
                raise SchemaMismatchError(f"{directory}: expected {name} {mine}, found {theirs}")
