"""The table of actors, in shared memory: a row for each actor process that the run has known. Only ingest writes it."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from common.data import Array
from common.errors import RunDirectoryError
from learner.shared.mapped import map_file

N_ROWS = 8192


class ActorState(enum.IntEnum):
    """Where an actor process is in its life."""

    UNUSED = 0
    AWAY = 1
    """Its stream broke; the actor may come back."""
    ONLINE = 2
    LEFT = 3
    """Said goodbye."""
    LOST = 4
    """Silent for too long."""
    BUILDING = 5
    """Its stream is open while it builds its environment and agent."""
    JOINED = 6
    """Joined, and its first stream has not begun yet."""


HOLDS_ID = (ActorState.JOINED, ActorState.BUILDING, ActorState.ONLINE, ActorState.AWAY)
"""States in which an actor keeps its id."""
WORKING = (ActorState.ONLINE, ActorState.AWAY)
"""States in which an actor may have items that it has not handed over."""


_ROW = np.dtype(
    [
        ("incarnation", "<u8"),
        ("actor_id", "<i8"),
        ("state", "<i8"),
        ("pid", "<i8"),
        ("host", "S64"),
        ("name", "S32"),
        ("version", "S32"),
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
"""Columns that an actor reports of itself; ``Report`` in the .proto explains them."""


_ADDED = ("name", "version")
"""Columns that tables of release 0.1 do not have."""
ROW_OF_0_1 = np.dtype([(column, _ROW[column].str) for column in _ROW.names or () if column not in _ADDED])


def upgrade_actor_table(directory: Path) -> None:
    """Add the columns that the table of a run of release 0.1 lacks, so that the run can be resumed.

    Nothing happens to a table of this release, nor to a run without a table, such as a run of ``sync-train``.

    Raises:
        RunDirectoryError: it cannot be read or written.
    """
    path = directory / "actors"
    try:
        if not path.exists() or path.stat().st_size != ROW_OF_0_1.itemsize * N_ROWS:
            return
        before, table = np.fromfile(path, ROW_OF_0_1), np.zeros(N_ROWS, _ROW)
        for column in ROW_OF_0_1.names or ():
            table[column] = before[column]
        part = path.with_name(".actors.part")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(table.tobytes())
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be given the columns of this release: {error.strerror}") from error


def map_actor_table(directory: Path, *, create: bool, writable: bool = True) -> Array:
    """Map the table as a structured array ``[N_ROWS]``; ``last_seen`` is in seconds on the host's monotonic clock.

    Raises:
        RunDirectoryError: it cannot be made or opened.
    """
    mapped = map_file(directory / "actors", _ROW.itemsize * N_ROWS, create=create, writable=writable)
    return np.frombuffer(mapped, _ROW)


def host_of(row: Mapping[str, Any]) -> str:
    """The host that an actor named when it joined."""
    host: bytes = row["host"]
    return host.decode(errors="replace")


def actor_of(table: Array, incarnation: int) -> tuple[int, str] | None:
    """The id and the host of an actor process; None if the table no longer has it."""
    rows = table[(table["incarnation"] == incarnation) & (table["state"] != ActorState.UNUSED)]
    return (int(rows[0]["actor_id"]), host_of(rows[0])) if len(rows) else None
