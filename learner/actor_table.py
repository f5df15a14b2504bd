"""One row for each actor process the run has known, in shared memory: ingest writes, everybody reads."""

from __future__ import annotations

import enum
from pathlib import Path

import numpy as np

from common.data import Array
from learner.shared import map_file

N_ROWS = 8192


class ActorState(enum.IntEnum):
    """Where an actor process is in its life."""

    UNUSED = 0
    AWAY = 1
    """Joined, but no stream is open."""
    ONLINE = 2
    LEFT = 3
    """Said goodbye."""
    LOST = 4
    """Silent for too long."""


_ROW = np.dtype(
    [
        ("incarnation", "<u8"),
        ("actor_id", "<i8"),
        ("state", "<i8"),
        ("pid", "<i8"),
        ("host", "S64"),
        ("items", "<i8"),
        ("env_steps", "<i8"),
        ("episodes", "<i8"),
        ("last_return", "<f8"),
        ("seconds", "<f8"),
        ("last_seen", "<f8"),
        ("behaviour_opt_steps", "<i8"),
        ("env_seconds", "<f8"),
        ("inference_seconds", "<f8"),
        ("wait_seconds", "<f8"),
        ("spool_bytes", "<i8"),
        ("reconnects", "<i8"),
        ("dropped_items", "<i8"),
        ("env_rebuilds", "<i8"),
        ("env_hangs", "<i8"),
    ]
)


REPORTED = (
    "env_steps",
    "seconds",
    "env_seconds",
    "inference_seconds",
    "wait_seconds",
    "spool_bytes",
    "reconnects",
    "dropped_items",
    "env_rebuilds",
    "env_hangs",
)
"""Columns that an actor reports of itself; ``Report`` in the .proto says what they mean."""


def map_actor_table(directory: Path, *, create: bool, writable: bool = True) -> Array:
    """The table as a structured array ``[N_ROWS]``; ``last_seen`` is on the host's monotonic clock."""
    mapped = map_file(directory / "actors", _ROW.itemsize * N_ROWS, create=create, writable=writable)
    return np.frombuffer(mapped, _ROW)
