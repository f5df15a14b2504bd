"""Records every whole episode of an actor as a file, beside the acting (``actor-worker --record``)."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from common.data import FINAL, FIRST, LANE, Items, Schema
from common.episode_files import SUFFIX, is_of_layout, write_episode
from common.errors import ConfigError, DatasetError
from common.lanes.lanes import DISCARDED

log = logging.getLogger(__name__)
MAX_WAITING_BYTES: Final = 256 << 20
"""The most bytes of rows that wait for the disk; rows that come then are dropped, and their episodes with them."""
MAX_EPISODE_BYTES: Final = 1 << 30
"""The most bytes of one episode; a longer one is not recorded."""
MAX_OPEN_BYTES: Final = 4 << 30
"""The most bytes of all unfinished episodes. Beyond it, the episode that got no row for the longest time is given up:
its client may be gone."""
WAITS: Final = f"more than {MAX_WAITING_BYTES >> 20} MiB wait for the disk"
LOOK_SECONDS: Final = 10.0
LEAST_BLOCK_BYTES: Final = 4096
"""A block of rows that waits counts for at least this number of bytes."""


class _Block(NamedTuple):
    """Rows of one or more rounds."""

    rows: Items
    size: int
    lost: int
    """Episodes that began in rows that were dropped right before."""
    is_after_gap: bool


class _Open(NamedTuple):
    """An episode of one lane that has begun."""

    pieces: list[Items]
    size: int


class EpisodeRecording:
    """Writes the episodes of all lanes of one actor into a directory, each as one file once it is whole.

    The acting thread copies the rows; a thread of the recording puts them together and writes them. Acting never waits
    for the disk. If the disk is too slow or full, episodes are lost, and warnings count them. An episode without an end
    is not recorded either: the actor stopped, its environment failed, or a safe stop interrupted it.

    Names of files begin with the time at which the recording began and with random digits, so that many actors, also of
    several hosts, can record into one directory. An episode that a person has discarded is not recorded, if the rows
    have the column ``info/discarded``.
    """

    def __init__(self, directory: Path, schema: Schema) -> None:
        self._directory, self._prefix = directory, f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        self._names = [column.name for column in schema.columns if is_of_layout(column.name)]
        self._kept = [*self._names, FIRST.name, FINAL.name, LANE.name]
        self._changed = threading.Condition()  # A thread holds it while it writes one of the next five attributes.
        self._waiting: deque[_Block] = deque()
        self._size = 0
        self._lost_begins = 0
        self._has_gap = self._is_closed = False
        # By lane, in the order of their newest rows. Only the writing thread uses it, and writes the counts.
        self._open: dict[int, _Open] = {}
        self._open_bytes = 0
        self.recorded = 0
        """Episodes that were written so far."""
        self.lost = 0
        """Episodes so far that could not be written, or whose rows were dropped."""
        self._warn_at = 1
        self._thread = threading.Thread(target=self._write_all, name="recording", daemon=True)
        self._thread.start()

    def add(self, rows: Items) -> None:
        """Take rows, ``[n, *shape]``, in the order of time; they are copied."""
        size = max(LEAST_BLOCK_BYTES, sum(rows[name].nbytes for name in self._kept))
        with self._changed:
            if self._size + size > MAX_WAITING_BYTES:
                self._lost_begins += int(np.count_nonzero(rows[FIRST.name]))
                self._has_gap = True
                return
            self._size += size  # There is room: only this thread takes any.
        block = {name: rows[name].copy() for name in self._kept}
        with self._changed:
            self._waiting.append(_Block(block, size, self._lost_begins, self._has_gap))
            self._lost_begins, self._has_gap = 0, False
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """Write the episodes that are whole, within ``seconds``, and log how many there are."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(seconds)
        if self._thread.is_alive():
            log.warning("the disk is too slow: %d blocks of rows are not recorded", len(self._waiting))
        log.info(
            "recorded %d episodes in %s; %d had begun and are not recorded, %d were lost",
            self.recorded,
            self._directory,
            len(self._open),
            self.lost,
        )

    def _write_all(self) -> None:
        """Take blocks until the recording is closed and none is left."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed, LOOK_SECONDS)
                block = self._waiting.popleft() if self._waiting else None
                if block is None and self._is_closed:
                    break
            if block is not None:
                self._take(block)
                with self._changed:
                    self._size -= block.size
        if self._has_gap:
            self._lose_gap(self._lost_begins, WAITS)

    def _take(self, block: _Block) -> None:
        if block.is_after_gap:
            self._lose_gap(block.lost, WAITS)
        try:
            pieces = [*_split(block.rows)]
        except MemoryError:  # The thread goes on with the next block.
            self._lose_gap(int(np.count_nonzero(block.rows[FIRST.name])), "this process has no memory for their rows")
            return
        for lane, piece in pieces:
            if piece[FIRST.name][0]:
                self._pop(lane)  # The episode before, if one is open, has not ended.
                self._open[lane] = _Open([], 0)
            if lane in self._open:
                self._extend(lane, piece)

    def _extend(self, lane: int, piece: Items) -> None:
        """Add rows to the open episode of a lane; write the episode if they end it."""
        pieces, size = self._pop(lane)
        size += sum(column.nbytes for column in piece.values())
        if size > MAX_EPISODE_BYTES:
            self._lose(1, f"an episode has more than {MAX_EPISODE_BYTES >> 30} GiB")
            return
        pieces.append(piece)
        if piece[FINAL.name][-1]:
            self._write(pieces)
            return
        self._open[lane] = _Open(pieces, size)
        self._open_bytes += size
        while self._open_bytes > MAX_OPEN_BYTES:
            self._pop(next(iter(self._open)))
            self._lose(1, f"unfinished episodes have more than {MAX_OPEN_BYTES >> 30} GiB")

    def _pop(self, lane: int) -> _Open:
        """Take the open episode of a lane away; an empty one if there is none."""
        found = self._open.pop(lane, _Open([], 0))
        self._open_bytes -= found.size
        return found

    def _write(self, pieces: list[Items]) -> None:
        """Write an episode; the last row is its final row."""
        try:
            columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in self._names}
            of_steps = {name: column[:-1] for name, column in columns.items() if name.partition("/")[0] != "obs"}
            if of_steps.get(f"info/{DISCARDED}", np.zeros(1)).any():
                log.info("an episode is not recorded: a person has discarded it")
                return
            place = self._directory / f"{self._prefix}-{self.recorded:06d}{SUFFIX}"
            write_episode(place, columns | of_steps, must_be_finite=False)
        except (OSError, MemoryError, DatasetError) as error:  # The thread goes on with the next episode.
            self._lose(1, str(error) or type(error).__name__)
        else:
            self.recorded += 1

    def _lose_gap(self, begins: int, reason: str) -> None:
        """Count the episodes whose rows were dropped: the open ones, and those that began in dropped rows."""
        self._lose(len(self._open) + begins, reason)
        self._open.clear()
        self._open_bytes = 0

    def _lose(self, episodes: int, reason: str) -> None:
        """Count episodes that are not recorded; warn of the first, and whenever there are twice as many."""
        self.lost += episodes
        if self.lost >= self._warn_at:
            self._warn_at = 2 * self.lost
            log.warning("%d episodes could not be recorded in %s so far: %s", self.lost, self._directory, reason)


def make_directory(path: Path) -> None:
    """Make the directory of a recording, and find out whether files can be written there.

    Raises:
        ConfigError: it cannot be made, or no file can be written.
    """
    probe = path / f".{secrets.token_hex(4)}.part"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"--record {path}: expected a directory to write episodes into, found: {error}") from error


def _split(rows: Items) -> Iterator[tuple[int, Items]]:
    """Split rows into pieces of one lane each, in the order of time. An episode begins only at a piece's first row."""
    for lane in np.unique(rows[LANE.name]).tolist():
        mine = np.flatnonzero(rows[LANE.name] == lane)
        for part in np.split(mine, np.flatnonzero(rows[FIRST.name][mine][1:]) + 1):
            yield lane, {name: column[part] for name, column in rows.items()}
