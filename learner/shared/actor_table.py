"""The table of actors, in shared memory: a row for each actor process that the run has known. Only ingest writes it.

A new figure that actors report is one line of ``_COLUMNS``, with ``REPORTED_FIGURE``, and a field of the same name of
``Report`` in the .proto. ``plain_values`` turns a row into plain Python values.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, Final

import numpy as np

from common.data import Array
from common.errors import RunDirectoryError
from common.shared.mapped import map_file

N_ROWS = 8192
HOST_BYTES: Final = 64
"""The most bytes of a host's name."""


class ActorState(enum.IntEnum):
    """The state of an actor process."""

    UNUSED = 0
    AWAY = 1
    """Its stream broke; the actor may come back."""
    ONLINE = 2
    LEFT = 3
    """The actor said goodbye."""
    LOST = 4
    """The actor was silent for too long."""
    BUILDING = 5
    """Its stream is open while it builds its environment and agent."""
    JOINED = 6
    """The actor has joined, and its first stream has not begun yet."""

    @property
    def label(self) -> str:
        """The state's name in metrics, in JSON and on terminals."""
        return self.name.lower()


HOLDS_ID = (ActorState.JOINED, ActorState.BUILDING, ActorState.ONLINE, ActorState.AWAY)
"""States in which an actor keeps its id."""
WORKING = (ActorState.ONLINE, ActorState.AWAY)
"""States in which an actor may have items that it has not handed over."""


REPORTED_FIGURE: Final = True
_COLUMNS: Final[tuple[tuple[str, str] | tuple[str, str, bool], ...]] = (
    ("incarnation", "<u8"),
    ("actor_id", "<i8"),
    ("state", "<i8"),
    ("pid", "<i8"),
    ("host", f"S{HOST_BYTES}"),
    ("name", "S32"),
    ("version", "S32"),
    ("items", "<i8"),
    ("env_steps", "<i8", REPORTED_FIGURE),
    ("episodes", "<i8"),
    ("last_return", "<f8"),
    ("seconds", "<f8", REPORTED_FIGURE),
    ("last_seen", "<f8"),
    ("behaviour_opt_steps", "<i8"),
    ("env_seconds", "<f8", REPORTED_FIGURE),
    ("inference_seconds", "<f8", REPORTED_FIGURE),
    ("wait_seconds", "<f8", REPORTED_FIGURE),
    ("spool_bytes", "<i8", REPORTED_FIGURE),
    ("reconnects", "<i8", REPORTED_FIGURE),
    ("dropped_items", "<i8", REPORTED_FIGURE),
    ("env_rebuilds", "<i8", REPORTED_FIGURE),
    ("env_hangs", "<i8", REPORTED_FIGURE),
    ("ticks", "<i8", REPORTED_FIGURE),
    ("late_ticks", "<i8", REPORTED_FIGURE),
    ("missed_ticks", "<i8", REPORTED_FIGURE),
    ("lateness_p99_seconds", "<f8", REPORTED_FIGURE),
    ("safe_stops", "<i8", REPORTED_FIGURE),
    ("intervened_steps", "<i8", REPORTED_FIGURE),
)
"""The columns of the file, in its order: name, dtype, and whether an actor reports the figure of itself."""
REPORTED: Final = tuple(name for name, _, *reported in _COLUMNS if reported)
"""Columns that an actor reports of itself; ``Report`` in the .proto explains them."""
_ROW: Final = np.dtype([(name, dtype) for name, dtype, *_ in _COLUMNS])


def map_actor_table(directory: Path, *, create: bool, writable: bool = True) -> Array:
    """Map the table as a structured array ``[N_ROWS]``; ``last_seen`` is in seconds on the host's monotonic clock.

    Nothing locks the table. Each value of a row is written whole, but ingest may write between two values that a reader
    takes, so the figures of one row may be a moment apart.

    Raises:
        RunDirectoryError: it cannot be made or opened, or is damaged.
    """
    path = directory / "actors"
    table = np.frombuffer(map_file(path, _ROW.itemsize * N_ROWS, create=create, writable=writable), _ROW)
    unknown = table["state"][~np.isin(table["state"], [*ActorState])]
    if len(unknown):
        message = f"{path}: expected the states of actors, {[*map(int, ActorState)]}, found {unknown[0]}"
        raise RunDirectoryError(f"{message}; remove the file: the next start makes another")
    return table


def plain_values(row: np.void) -> dict[str, Any]:
    """A row by column: numbers as Python's, texts decoded, the state as its label."""
    values: dict[str, Any] = {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value
        for name, value in zip(_ROW.names or (), row.item(), strict=True)
    }
    return values | {"state": ActorState(values["state"]).label}


def cut_host(host: str) -> str:
    """The name of a host as the table keeps it: its first 64 bytes."""
    return host.encode()[:HOST_BYTES].decode(errors="replace")


def host_of(row: np.void) -> str:
    """The host that an actor named when it joined."""
    host: bytes = row["host"]
    return host.decode(errors="replace")


def actor_of(table: Array, incarnation: int) -> tuple[int, str] | None:
    """The id and the host of an actor process; None if the table no longer has the process."""
    rows = table[(table["incarnation"] == incarnation) & (table["state"] != ActorState.UNUSED)]
    return (int(rows[0]["actor_id"]), host_of(rows[0])) if len(rows) else None
