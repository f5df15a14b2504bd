"""The limits of one batch: the limits that ingest tells actors now, and the largest that the run has told any actor.

An actor groups its rows into batches by the limits that hold when it first sends them, and may not change the rows of
a batch that it has sent under a number. So a run that is resumed with lower limits still accepts batches within the
former, higher limits from actors that had joined before. The largest limits are kept in ``shared/limits.json``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from common.config.actor_config import MAX_BATCH_ROWS
from common.config.run_config import RunConfig
from common.depth import parse_json
from common.errors import RunDirectoryError
from common.wire.pb import crossborder_pb2 as pb
from learner.shared.durable import replace_text

log = logging.getLogger(__name__)
BATCHES_PER_REPLAY: Final = 16
"""A replay has room for this many batches or more: one message cannot push out the rows of other actors."""
_KEPT: Final = ("max_rows", "max_message_bytes")


class BatchLimits:
    """Both kinds of limits. Constructing it writes limits that are larger than before into the file.

    Args:
        directory: of the run's shared files.
        present: the limits that actors are told from now on.
        capacity: of the replay. A run whose replay was lost may go on with a smaller one, which takes no larger batch.

    Raises:
        RunDirectoryError: the file cannot be read.
        OSError: it cannot be written.
    """

    def __init__(self, directory: Path, present: pb.Limits, capacity: int) -> None:
        self.present = present
        self.largest = pb.Limits()
        """The largest limits that the run has told any actor."""
        self.largest.CopyFrom(present)
        path = directory / "limits.json"
        before = _read(path)
        for name in _KEPT:
            setattr(self.largest, name, max(getattr(present, name), before.get(name, 0)))
        now = {name: getattr(self.largest, name) for name in _KEPT}
        if now != before:
            replace_text(path, json.dumps(now) + "\n")
        self.largest.max_rows = min(self.largest.max_rows, capacity)


def present_limits(config: RunConfig, message_bytes: int) -> pb.Limits:
    """The limits of a configuration: at most a small part of the replay, but room for ``push.n_buffer`` rows.

    Args:
        config: of the run.
        message_bytes: the most bytes of one message, with room for a batch of ``push.n_buffer`` rows.
    """
    part = max(config.push.n_buffer, config.replay.capacity // BATCHES_PER_REPLAY)
    return pb.Limits(
        max_rows=min(MAX_BATCH_ROWS, config.replay.capacity, part),
        max_message_bytes=message_bytes,
        silence_seconds=config.server.lost_seconds,
        compressions=[pb.COMPRESSION_ZSTD],
    )


def _read(path: Path) -> Mapping[str, int]:
    if not path.exists():
        return {}
    try:
        found = parse_json(path.read_text())
        return {name: int(found[name]) for name in _KEPT}
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        log.warning(
            "%s is damaged (%s); actors that were told larger limits than the present limits may end", path, error
        )
        return {}
