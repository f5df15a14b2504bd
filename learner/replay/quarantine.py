"""Batches that were refused and items found bad later: the newest few, for people to look at.

Ingest and trainer each have a file of their own below ``shared/``, so no file has two writers. A file holds
``MAX_RECORDS`` records of ``MAX_VALUE_BYTES`` and a few hundred bytes each, and is written whole, once in
``WRITE_SECONDS`` at most: neither a flood of refusals nor a long run fills the disk.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from common.data import Array, Items
from common.process.clocks import Bucket
from learner.shared.durable import tolerated

log = logging.getLogger(__name__)
Writer = Literal["ingest", "trainer"]
WRITERS: Final[tuple[Writer, ...]] = ("ingest", "trainer")
MAX_RECORDS: Final = 100
MAX_VALUE_BYTES: Final = 2048
MAX_TEXT: Final = 500
RATE: Final = 1.0
"""Records a second in the long run, after ``MAX_RECORDS`` at once; those beyond are counted only."""
WRITE_SECONDS: Final = 1.0
SHORT: Final = 8
"""An array of up to this many values is shown whole."""


@dataclass(frozen=True)
class Record:
    """One batch that was refused, or one item that is suspected. None: it is not known, or there is none."""

    reason: str
    """Why a batch was refused, see ``RefusedError.reason``; ``found bad`` or ``drawn before opt raised`` of items."""
    message: str
    actor_id: int | None = None
    host: str | None = None
    incarnation: str | None = None
    """16 hexadecimal digits."""
    seq: int | None = None
    item: int | None = None
    """Absolute index in the replay."""
    column: str | None = None
    expected: str | None = None
    found: str | None = None
    row: int | None = None
    """The first bad row of the batch."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """That row or item, see ``brief``."""
    writer: str = ""
    time: float = 0.0
    """Unix seconds."""
    missed: int = 0
    """Records that were left out before this one, because there were too many."""


class Quarantine:
    """The newest records of one writer.

    Args:
        shared: the run's directory of shared files.
        writer: the only process that writes this file.
        clock: seconds, monotonic.
    """

    def __init__(self, shared: Path, writer: Writer, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._writer, self._clock = _path(shared, writer), writer, clock
        self._records = deque(read_records(shared, writer), maxlen=MAX_RECORDS)
        self._bucket, self._missed = Bucket(RATE, MAX_RECORDS, clock), 0
        self._is_new, self._next_write = False, clock()

    def has_room(self) -> bool:
        """Whether one more record may be added now; otherwise it is counted as missed."""
        takes = self._bucket.take()
        self._missed += not takes
        return takes

    def add(self, record: Record) -> None:
        """Keep a record, for which there was room; the next ``tick`` or ``write`` puts it into the file."""
        kept = replace(
            record,
            writer=self._writer,
            time=time.time(),
            missed=self._missed,
            message=record.message[:MAX_TEXT],
            values=record.values if len(json.dumps(record.values)) <= MAX_VALUE_BYTES else {},
        )
        self._records.append(kept)
        self._missed, self._is_new = 0, True

    def tick(self) -> None:
        """Write what is new, unless that was done a moment ago."""
        if self._is_new and self._clock() >= self._next_write:
            self.write()

    def write(self) -> None:
        """Write what is new; a disk that takes nothing is no reason to end a run."""
        if not self._is_new:
            return
        self._is_new, self._next_write = False, self._clock() + WRITE_SECONDS
        part = self._path.with_name(f".{self._path.name}.part")
        with tolerated("the quarantine is not written"):
            part.write_text(json.dumps([asdict(record) for record in self._records], indent=1) + "\n")
            part.rename(self._path)  # Not synced: that would stop ingest for the time of a disk.


def read_records(shared: Path, writer: Writer) -> list[Record]:
    """The records of one writer, oldest first; none where there is no file, or none that can be read."""
    path = _path(shared, writer)
    if not path.exists():
        return []
    try:
        return [Record(**found) for found in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        log.warning("%s: the quarantine cannot be read and begins anew: %s", path, error)
        return []


def brief(value: Array) -> Any:
    """A short array as it is, of a long one the shape, ends and mean; NaN and infinity as text, as JSON has neither."""
    if value.size <= SHORT:
        return _plain(value.tolist())
    return {
        "shape": list(value.shape),
        "min": _plain(value.min().item()),
        "mean": _plain(float(value.mean(dtype=np.float64))),
        "max": _plain(value.max().item()),
    }


def brief_row(items: Items, row: int) -> dict[str, Any]:
    """One row of items, each of its columns as ``brief`` shows it."""
    return {name: brief(column[row]) for name, column in items.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(element) for element in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def _path(shared: Path, writer: Writer) -> Path:
    return shared / f"quarantine-{writer}.json"
