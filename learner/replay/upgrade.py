"""From layout 2, of release 0.1, to layout 3: a log of batches is made for the items that are there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import numpy as np

from learner.replay.batch_log import Batch
from learner.replay.ring import read_ring

if TYPE_CHECKING:
    from learner.replay.memory import ReplayMemory

log = logging.getLogger(__name__)
ROWS: Final = 4096
"""Items in one record of the log that is made."""


def upgrade(memory: ReplayMemory) -> None:
    """Write the log of files of layout 2, as if unknown actors had stored all items in batches of ``ROWS``.

    The checksums are of the items as they are now. A kill on the way changes nothing that layout 2 does not allow.
    """
    _finish_journal(memory)
    header, number, frames_end = memory.header, 0, 0
    for start in range(memory.first(), memory.committed, ROWS):
        rows = min(ROWS, memory.committed - start)
        lowest, highest = _frames_of(memory, start, rows)
        frames_start = frames_end if number else lowest
        frames_end = max(frames_start, highest)
        batch = Batch(number, start, rows, frames_end - frames_start, frames_start, frames_start - lowest, 0, 0, 0)
        memory.log.write(batch._replace(checksum=memory.checksum(batch)))
        number += 1
    header.batches = number
    log.warning(
        "%s: upgraded from layout 2; of its %d items it is not known which actors made them, and whether a power cut "
        "has damaged any before now",
        memory.directory,
        len(memory),
    )


def _finish_journal(memory: ReplayMemory) -> None:
    """As release 0.1 did: a batch counts from ``journal_end`` on, a kill may have come before its cursor and ends."""
    header, record = memory.header, memory.journal[0]
    if header.journal_end > header.committed:
        known = np.flatnonzero(memory.cursors["incarnation"] == record["incarnation"])
        slot = known[0] if len(known) else memory.cursors["end"].argmin()
        memory.cursors[slot] = record
        header.frames_end = record["frames_end"]
        header.committed = header.journal_end


def _frames_of(memory: ReplayMemory, start: int, rows: int) -> tuple[int, int]:
    """The lowest number of a frame to which these rows refer, and the number after the highest."""
    if memory.frames is None:
        return 0, 0
    bases = read_ring(memory.frames.bases, start, start + rows)
    positions = [read_ring(memory.columns[column.name], start, start + rows) for column in memory.schema.frame_columns]
    highest = max(int((bases + column.max(axis=1)).max()) for column in positions)
    return int(bases.min()), highest + 1
