"""Reads the files of a run's replay for people, while a learner uses them or afterwards, and never writes them."""

from __future__ import annotations

import logging
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open

from common.data import FINAL, PRIORITY, Array, Items
from common.depth import ANY_NUMBER, parse_json
from common.errors import CheckpointError
from common.shared.mapped import fence
from learner.replay.memory import ReplayMemory
from learner.replay.quarantine import WRITERS, read_records, summarize_row
from learner.replay.ring import read_ring
from learner.shared.actor_table import ActorState, map_actor_table, plain_values
from learner.shared.control import ControlBlock
from learner.shared.durable import READ_TRIES, read_whole
from learner.storage.rundir import list_states

log = logging.getLogger(__name__)
HISTOGRAM_ROWS: Final = 100_000
"""The most rows that a histogram counts; in a larger replay it counts evenly spaced rows."""
N_BINS: Final = 20
STATE: Final = "state.safetensors"
PRIORITIES: Final = re.compile(r"buffer\.(?:(\d+):)?priorities")
"""The names of priorities in a checkpoint; with sources there are several."""


@dataclass(frozen=True)
class ValueHistogram:
    """How many of ``n`` finite values lie in each of ``N_BINS`` bins of equal width, from ``low`` to ``high``."""

    n: int
    n_nonfinite: int
    mean: float
    low: float
    high: float
    counts: list[int]

    @classmethod
    def of(cls, values: Array) -> ValueHistogram | None:
        """Count values ``[n]``; None if none of them is finite."""
        found = values[np.isfinite(values)].astype(np.float64)
        if not len(found):
            return None
        low, high = float(found.min()), float(found.max())
        # By hand: np.histogram refuses bins that are narrower than the precision of the values.
        bins = np.minimum((found - low) * (N_BINS / (high - low or 1.0)), N_BINS - 1).astype(np.int64)
        counts = np.bincount(bins, minlength=N_BINS).tolist()
        return cls(len(found), len(values) - len(found), float(found.mean()), low, high, counts)

    def edges(self) -> list[float]:
        """Where the bins begin and end, ``[N_BINS + 1]``."""
        width = (self.high - self.low or 1.0) / N_BINS
        return [self.low + i * width for i in range(N_BINS + 1)]


class Inspection:
    """One look at the replay in a run's directory.

    Raises:
        RunDirectoryError: it holds no replay that can be read.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._shared = run / "shared"
        self.memory = ReplayMemory.open_saved(self._shared / "replay")

    def summary(self) -> dict[str, Any]:
        """Size, fill and extent, as plain values."""
        memory = self.memory
        return {
            "capacity": memory.capacity,
            "rows": len(memory),
            "drawable": memory.drawable,
            "fill": len(memory) / memory.capacity,
            "rows_stored": memory.committed,
            "steps_stored": memory.steps,
            "first": memory.first(),
            "row_bytes": memory.schema.row_bytes,
            "allocated_bytes": memory.n_bytes,
            "oldest_seconds": self._compute_age(),
        }

    def actors(self) -> list[dict[str, Any]]:
        """How much each actor process of the run has stored, most steps first; none for a run in turns."""
        table = self._read_actor_table()
        known = table[table["state"] != ActorState.UNUSED]
        return [_describe_actor(row) for row in known[np.argsort(-known["items"], kind="stable")]]

    def newest(self, count: int) -> list[dict[str, Any]]:
        """The newest rows that are whole, newest first, each with its absolute ``index``.

        A writer may overwrite rows while this method copies them. So it leaves out rows below ``oldest`` afterwards.
        """
        memory, end = self.memory, self.memory.committed
        start = end - min(count, len(memory))
        columns = {name: read_ring(ring, start, end) for name, ring in memory.columns.items()}
        fence()
        return [
            {"index": row, **summarize_row(columns, row - start)}
            for row in range(end - 1, max(start, memory.first()) - 1, -1)
        ]

    def quarantine(self) -> list[dict[str, Any]]:
        """Batches that were refused and rows that were found bad, newest first; see ``learner.replay.quarantine``."""
        records = [record for writer in WRITERS for record in read_records(self._shared, writer)]
        return [asdict(record) for record in sorted(records, key=lambda record: record.time, reverse=True)]

    def histograms(self) -> dict[str, ValueHistogram]:
        """Histograms of rewards, the actors' first priorities and the priorities in the newest checkpoint, if any."""
        values = {
            "reward": self._read_column("reward"),
            "first priority": self._read_column(PRIORITY.name),
            **self._read_priorities(),
        }
        found = {name: ValueHistogram.of(column) for name, column in values.items() if column is not None}
        return {name: histogram for name, histogram in found.items() if histogram is not None}

    def _read_column(self, name: str) -> Array | None:
        """Values of a column, without final rows; None if no column has the name, or its values are not single numbers.

        A writer may overwrite rows while this method copies them. So it leaves out rows below ``oldest`` afterwards.
        """
        memory = self.memory
        column = memory.columns.get(name)
        if column is None or column.ndim != 1:
            return None
        first, end = memory.first(), memory.committed
        index = np.unique(np.linspace(first, end - 1, min(HISTOGRAM_ROWS, max(0, end - first))).astype(np.int64))
        values = column[index % memory.n_slots]
        final = memory.columns.get(FINAL.name)
        counts = np.ones(len(index), np.bool_) if final is None else ~final[index % memory.n_slots]
        fence()
        return values[counts & (index >= memory.first())]

    def _read_priorities(self) -> Items:
        """The priorities in the newest checkpoint that is whole, by name: of the actors' rows, and of each source."""
        for _ in range(READ_TRIES):
            try:
                for state in list_states(self._run):
                    try:
                        return read_whole(state, _priorities_in)
                    except FileNotFoundError:
                        raise
                    except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
                        log.warning("%s: cannot be read: %s", state / STATE, error)
            except FileNotFoundError:
                continue  # The learner has removed it, and a newer one is there.
            return {}
        raise CheckpointError(f"{self._run}: {READ_TRIES} checkpoints without {STATE} were found one after another")

    def _read_actor_table(self) -> Array:
        if not (self._shared / "actors").exists():
            return np.empty(0, [("state", "<i8"), ("items", "<i8")])
        return map_actor_table(self._shared, create=False, writable=False)

    def _compute_age(self) -> float | None:
        """Seconds between the arrival of the oldest row and the last message of an actor; None if there was none."""
        table = self._read_actor_table()
        known = table[table["state"] != ActorState.UNUSED]
        if not len(known) or not len(self.memory):
            return None
        control = ControlBlock.open(self._shared, writable=False)
        return max(0.0, float(known["last_seen"].max()) - float(control.oldest_item_at))


def _priorities_in(checkpoint: Path) -> Items:
    """By name. Rows at which no draw can begin have the priority 0, and are left out."""
    found = Items()
    with safe_open(checkpoint / STATE, "numpy") as state:
        for name in state.keys():  # noqa: SIM118 - no mapping
            if match := PRIORITIES.fullmatch(name):
                priorities = state.get_tensor(name)
                found[_name_priorities(checkpoint, int(match[1] or 0))] = priorities[priorities > 0]
    return dict(sorted(found.items()))


def _name_priorities(checkpoint: Path, part: int) -> str:
    """The name that people see for the priorities of one part of a ``MixedReplay``; the first has the actors' rows."""
    if not part:
        return "priority"
    values = parse_json((checkpoint / "state.json").read_text(), **ANY_NUMBER)
    return f"priority of {[*values['buffer']['sources']][part]}"


def _describe_actor(row: np.void) -> dict[str, Any]:
    values = plain_values(row)
    kept = ("actor_id", "host", "pid", "state", "items", "env_steps", "episodes")
    return {name: values[name] for name in kept} | {
        "last_return": values["last_return"] if values["episodes"] else None
    }
