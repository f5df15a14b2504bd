"""What the process that mirrors the run tells trainer and ingest: single words of memory, as in the control block."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from common.shared.mapped import Word, Words, map_file

FILE: Final = "mirror"


class MirrorBlock(Words):
    """The words that the mirror's process writes; the trainer sets them to 0 before it starts that process."""

    N_WORDS = 8
    epoch = Word(0)
    """Names this life of the run to actors and other learners, see ``learner.storage.mirror``; 0: not claimed yet."""
    mirrored = Word(1)
    """Absolute index after the last row in the newest state of the mirror."""
    mirrored_at = Word(2, float)
    """When that state was read from the replay, on the host's monotonic clock."""
    states = Word(3)
    """States of the run that were written to the mirror in this life."""
    sent_bytes = Word(4)
    """Bytes that were sent in this life, compressed."""
    failures = Word(5)
    """Tries in this life that ended with an error."""

    def start(self, rows: int, now: float) -> None:
        """Begin a life of the run: nothing is mirrored beyond ``rows``, the rows that the replay begins with."""
        self.epoch = self.states = self.sent_bytes = self.failures = 0
        self.mirrored, self.mirrored_at = rows, now

    @classmethod
    def open(cls, shared: Path, *, writable: bool = True) -> MirrorBlock:
        """Open the block in a run's shared files; make it if it is not there yet.

        Raises:
            RunDirectoryError: the file cannot be made or opened.
        """
        path = shared / FILE
        return cls(map_file(path, 8 * cls.N_WORDS, create=writable and not path.exists(), writable=writable))
