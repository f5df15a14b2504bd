"""``layout.json`` of a replay: its columns, its room and the version of its files; and the upgrade from version 2.

Layout 2, of release 0.1, has a journal of one batch in place of the log of many batches that layout 3 has.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from common.data import Schema
from common.errors import RunDirectoryError, SchemaMismatchError
from learner.replay.batch_log import Batch
from learner.replay.ring import read_ring
from learner.shared.durable import replace_text

if TYPE_CHECKING:
    from learner.replay.memory import ReplayMemory

log = logging.getLogger(__name__)
LAYOUT_VERSION: Final = 3
_READABLE: Final = (2, LAYOUT_VERSION)
ROWS: Final = 4096
"""Items in each record of the log that an upgrade makes."""


@dataclass(frozen=True)
class Layout:
    """Columns, room and version of the files of a replay.

    Args:
        schema: columns of an item.
        capacity: items kept.
        frame_capacity: frames kept; 0 where the schema has none.
        slack: slots beyond ``capacity``.
        began: absolute index of the first item; above 0 where an earlier replay of the run was lost.
        version: of the files.
    """

    schema: Schema
    capacity: int
    frame_capacity: int
    slack: int
    began: int = 0
    version: int = LAYOUT_VERSION

    def write(self, directory: Path) -> None:
        """Write ``layout.json``, whole or not at all, with the present version, and sync it.

        Raises:
            OSError: it cannot be written.
        """
        values = {**asdict(self), "schema": self.schema.to_json(), "version": LAYOUT_VERSION}
        replace_text(directory / "layout.json", json.dumps(values))

    @classmethod
    def read(cls, directory: Path) -> Layout:
        """Read ``layout.json``.

        Raises:
            RunDirectoryError: there is no such file that can be read, or its version is not known here.
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
        """Check that the files in ``directory`` have this layout; slack and ``began`` may differ.

        Raises:
            SchemaMismatchError: the files have other columns, or room for another number of items or frames.
        """
        self.schema.require_equal(found.schema, "this run", f"replay in {directory}")
        for name in ("capacity", "frame_capacity"):
            mine, theirs = getattr(self, name), getattr(found, name)
            if mine != theirs:
                raise SchemaMismatchError(f"{directory}: expected {name} {mine}, found {theirs}")


def upgrade_from_layout_2(memory: ReplayMemory) -> None:
    """Write the log of files of layout 2, as if unknown actors had stored all items in batches of ``ROWS``.

    The checksums are those of the items as they are now. A kill in the middle leaves files that layout 2 allows.
    """
    _finish_journal(memory)
    number, frames_end = 0, 0
    for start in range(memory.first(), memory.committed, ROWS):
        rows = min(ROWS, memory.committed - start)
        lowest, highest = _find_frames(memory, start, rows)
        frames_start = frames_end if number else lowest
        frames_end = max(frames_start, highest)
        batch = Batch(number, start, rows, frames_end - frames_start, frames_start, frames_start - lowest, 0, 0, 0)
        memory.log.write(batch._replace(checksum=memory.compute_checksum(batch)))
        number += 1
    memory.header.batches = number
    log.warning(
        "%s: upgraded from layout 2; of its %d items it is not known which actors made them, and whether a power cut "
        "has damaged any before now",
        memory.directory,
        len(memory),
    )


def _finish_journal(memory: ReplayMemory) -> None:
    """Finish the last batch, as release 0.1 did.

    In layout 2 a batch counts once ``journal_end`` includes it. A kill may have come before the batch's cursor and the
    other ends were written: they are then taken from the journal.
    """
    header, record = memory.header, memory.journal[0]
    if header.journal_end > header.committed:
        known = np.flatnonzero(memory.cursors["incarnation"] == record["incarnation"])
        slot = known[0] if len(known) else memory.cursors["end"].argmin()
        memory.cursors[slot] = record
        header.frames_end = record["frames_end"]
        header.committed = header.journal_end


def _find_frames(memory: ReplayMemory, start: int, rows: int) -> tuple[int, int]:
    """The lowest number of a frame to which these rows refer, and the number after the highest."""
    if memory.frames is None:
        return 0, 0
    bases = read_ring(memory.frames.bases, start, start + rows)
    positions = [read_ring(memory.columns[column.name], start, start + rows) for column in memory.schema.frame_columns]
    highest = max(int((bases + column.max(axis=1)).max()) for column in positions)
    return int(bases.min()), highest + 1
