"""The newest batches that were refused and rows that were found bad, for people to inspect.

Ingest and the trainer write separate files in ``shared/``, so no file has two writers. A file holds ``MAX_RECORDS``
records of ``MAX_VALUE_BYTES`` and a few hundred bytes each, and is written whole, at most once in ``WRITE_SECONDS``. So
a flood of refusals or a long run cannot fill the disk. Each sender has a limit of its own, and the records of the
sender that has most of them make room for new ones. So even if one sender makes very many, those of others stay.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from common.data import Array, Items
from common.depth import parse_json
from common.process.clocks import Buckets
from learner.shared.durable import logging_write_errors

log = logging.getLogger(__name__)
Writer = Literal["ingest", "trainer"]
WRITERS: Final[tuple[Writer, ...]] = ("ingest", "trainer")
MAX_RECORDS: Final = 100
MAX_SENDERS: Final = 4096
"""The most senders that are remembered; then the sender that was refused longest ago is forgotten."""
MAX_VALUE_BYTES: Final = 2048
MAX_TEXT: Final = 500
RATE: Final = 1.0
"""Records of one sender a second in the long run, after ``MAX_RECORDS`` at once; further records are counted only."""
WRITE_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 60.0
"""The time after which records that could not be written are written again."""
SHORT: Final = 8
"""Up to this many values of an array are recorded one by one."""


@dataclass(frozen=True)
class Record:
    """One batch that was refused, or one row of the replay that is suspected.

    A field is None if it is unknown or does not apply.
    """

    reason: str
    """Why a batch was refused, see ``RefusedError.reason``; ``found bad`` or ``drawn before opt raised`` of rows."""
    message: str
    actor_id: int | None = None
    host: str | None = None
    sender: str = ""
    """The name of the actor's token; empty without one, and for rows of the replay."""
    incarnation: str | None = None
    """16 hexadecimal digits."""
    seq: int | None = None
    index: int | None = None
    """Absolute index in the replay."""
    column: str | None = None
    expected: str | None = None
    found: str | None = None
    row: int | None = None
    """The first bad row of the batch."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values of that row, by column; see ``summarize``."""
    writer: str = ""
    time: float = 0.0
    """Unix seconds."""
    missed: int = 0
    """Records that were left out right before this record, because there were too many."""


class Quarantine:
    """The newest records of one writer.

    Args:
        shared: the run's directory of shared files.
        writer: the only process that writes this file.
        clock: seconds, monotonic.
    """

    def __init__(self, shared: Path, writer: Writer, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._writer, self._clock = _path(shared, writer), writer, clock
        self._records = read_records(shared, writer)[-MAX_RECORDS:]
        self._buckets, self._missed = Buckets(RATE, MAX_RECORDS, MAX_SENDERS, clock), 0
        self._is_new, self._next_write = False, clock()

    def has_room(self, sender: str) -> bool:
        """Whether one more record of a sender may be added now; if not, that record is counted as missed."""
        may_add = self._buckets.take(sender)
        self._missed += not may_add
        return may_add

    def add(self, record: Record) -> None:
        """Keep a record of a sender that has room; the next ``tick`` or ``write`` puts it into the file."""
        kept = replace(
            record,
            writer=self._writer,
            time=time.time(),
            missed=self._missed,
            message=record.message[:MAX_TEXT],
            values=record.values if len(json.dumps(record.values)) <= MAX_VALUE_BYTES else {},
        )
        if len(self._records) >= MAX_RECORDS:
            senders = [old.sender for old in self._records]
            del self._records[senders.index(Counter(senders).most_common(1)[0][0])]
        self._records.append(kept)
        self._missed, self._is_new = 0, True

    def tick(self) -> None:
        """Write new records to the file, at most once in ``WRITE_SECONDS``."""
        if self._is_new and self._clock() >= self._next_write:
            self.write()

    def write(self) -> None:
        """Write new records to the file. A failure is logged and does not end the run; a later ``tick`` tries again."""
        if not self._is_new:
            return
        self._next_write = self._clock() + RETRY_SECONDS
        part = self._path.with_name(f".{self._path.name}.part")
        with logging_write_errors("the quarantine is not written"):
            part.write_text(json.dumps([asdict(record) for record in self._records], indent=1) + "\n")
            part.rename(self._path)  # Not synced: ingest would stand still until the disk has answered.
            self._is_new, self._next_write = False, self._clock() + WRITE_SECONDS


def read_records(shared: Path, writer: Writer) -> list[Record]:
    """The records of one writer, oldest first; none without a readable file. A file that cannot be read is logged."""
    path = _path(shared, writer)
    if not path.exists():
        return []
    try:
        return [Record(**found) for found in parse_json(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        log.warning("%s: the quarantine cannot be read and begins empty: %s", path, error)
        return []


def summarize(value: Array) -> Any:
    """A value for JSON: the elements of a short array; shape, least, mean and greatest of a long one.

    NaN and infinity become text, since JSON has neither.
    """
    if value.size <= SHORT:
        return _to_json(value.tolist())
    return {
        "shape": list(value.shape),
        "min": _to_json(value.min().item()),
        "mean": _to_json(float(value.mean(dtype=np.float64))),
        "max": _to_json(value.max().item()),
    }


def summarize_row(items: Items, row: int) -> dict[str, Any]:
    """The values of one row, by column; see ``summarize``."""
    return {name: summarize(column[row]) for name, column in items.items()}


def _to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_json(element) for element in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def _path(shared: Path, writer: Writer) -> Path:
    return shared / f"quarantine-{writer}.json"
