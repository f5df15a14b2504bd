"""The largest limits that a run has told its actors, kept in a file beside the replay.

An actor groups its batches by the limits of the day on which it sends them first. A run that is resumed with lower
limits must still take those groups, since an actor may not change the content of a number that it has sent.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from common.wire.pb import crossborder_pb2 as pb
from learner.shared.durable import replace_text

log = logging.getLogger(__name__)
_PROMISED: Final = ("max_rows", "max_message_bytes")


def promise(directory: Path, limits: pb.Limits) -> pb.Limits:
    """Note ``limits`` in ``directory``; the largest that any start of this run has noted there."""
    path, largest = directory / "limits.json", pb.Limits()
    largest.CopyFrom(limits)
    before = _read(path)
    for name in _PROMISED:
        setattr(largest, name, max(getattr(limits, name), before.get(name, 0)))
    now = {name: getattr(largest, name) for name in _PROMISED}
    if now != before:
        replace_text(path, json.dumps(now) + "\n")
    return largest


def _read(path: Path) -> Mapping[str, int]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
        return {name: int(found[name]) for name in _PROMISED}
    except (ValueError, LookupError, TypeError) as error:
        log.warning(
            "%s is damaged (%s); actors that were told larger limits than the present ones may end", path, error
        )
        return {}
