"""Rows that can end a run, and the actors that sent them.

A disk may have damaged values, and the rules of a resumed run may be stricter than before. One row with a value that
the rules refuse can end a run, again after each ``--resume``. So ``screen`` looks at all rows once, in chunks, before
the first draw, and excludes those rows. ``report_suspects`` names the rows that ``opt`` had drawn when it raised.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from common.data import Array
from common.errors import BadValue
from common.process.clocks import Deadline
from learner.replay.memory import ReplayMemory
from learner.replay.quarantine import Quarantine, Record, summarize_row
from learner.replay.ring import read_ring
from learner.replay.value_rules import ValueRules

log = logging.getLogger(__name__)
CHUNK_BYTES: Final = 16 << 20
PROGRESS_SECONDS: Final = 5.0
N_NAMED: Final = 10
"""The most rows, and the most actors, that log and quarantine name when rows are excluded."""
N_SUSPECTS: Final = 32
"""The most rows, and the most actors, that they name when ``opt`` raises."""
ActorOf = Callable[[int], tuple[int, str] | None]
"""Takes an incarnation; gives the actor's id and host, None if they are no longer known."""


@dataclass(frozen=True)
class BadRow:
    """A row, by absolute index, with the first of its values that its column may not hold."""

    index: int
    bad: BadValue


def screen(
    memory: ReplayMemory, rules: ValueRules, actor_of: ActorOf, quarantine: Quarantine, name: str = "the replay"
) -> int:
    """Exclude all rows that hold a value which the rules refuse, and log which actors sent them.

    Args:
        memory: of a run that goes on.
        rules: of this run.
        actor_of: who sent a row.
        quarantine: takes a record of the first ``N_NAMED`` rows.
        name: of the replay in the log and the records.

    Returns:
        How many were excluded.
    """
    found = list(_find_bad_rows(memory, rules))
    if not found:
        return 0
    indices = np.array([row.index for row in found], np.int64)
    incarnations = memory.find_origins(indices)
    memory.exclude(indices)
    for row, incarnation in zip(found[:N_NAMED], incarnations.tolist(), strict=False):
        bad = row.bad
        why = {"reason": "found bad", "message": bad.at(f"row {row.index} of {name}")}
        why |= {"column": bad.column, "expected": bad.expected, "found": bad.found}
        quarantine.add(_make_record(memory, row.index, incarnation, actor_of(incarnation), **why))
    quarantine.write()
    log.warning(
        "%d rows of %s hold values that are refused, and will never be drawn; the first: %s; %s",
        len(found),
        name,
        found[0].bad.at(f"row {found[0].index}"),
        _count_by_actor(incarnations, actor_of, N_NAMED),
    )
    return len(found)


def report_suspects(memory: ReplayMemory, drawn: Array, actor_of: ActorOf, quarantine: Quarantine) -> str:
    """Put the rows of the batch that was drawn last into the quarantine, and return a text that names them.

    Args:
        memory: holds the rows.
        drawn: their absolute indices ``[n]``, in any order; empty if they are not known.
        actor_of: who sent a row.
        quarantine: takes a record of the first ``N_SUSPECTS`` of them.
    """
    if not len(drawn):
        return "opt had drawn no rows, or a batch that was gathered before the run was resumed"
    rows = np.unique(drawn)
    incarnations = memory.find_origins(rows)
    why = {
        "reason": "drawn before opt raised",
        "message": f"one of {len(rows)} rows that opt drew last before it raised",
    }
    for row, incarnation in zip(rows[:N_SUSPECTS].tolist(), incarnations.tolist(), strict=False):
        quarantine.add(_make_record(memory, row, incarnation, actor_of(incarnation), **why))
    quarantine.write()
    listed = ", ".join(map(str, rows[:N_SUSPECTS].tolist())) + (", …" if len(rows) > N_SUSPECTS else "")
    return (
        f"opt had last drawn {len(rows)} rows, of {rows[0]} to {rows[-1]}: {listed}; "
        f"{_count_by_actor(incarnations, actor_of, N_SUSPECTS)}; replay-inspect shows them in the quarantine"
    )


def _find_bad_rows(memory: ReplayMemory, rules: ValueRules) -> Iterator[BadRow]:
    """All rows that count and hold a value which the rules refuse, in order."""
    columns = [column for column in memory.schema.columns if rules.can_refuse(column)]
    if not columns:
        return
    first, end = memory.first(), memory.committed
    size = max(1, CHUNK_BYTES // max(column.row_bytes for column in columns))
    next_report = Deadline(PROGRESS_SECONDS)
    for start in range(first, end, size):
        stop = min(end, start + size)
        bad: dict[int, BadValue] = {}
        for column in columns:
            values = read_ring(memory.columns[column.name], start, stop)
            for row in np.flatnonzero(rules.find_refused(column, values)).tolist():
                bad.setdefault(row, rules.find_first_refused(column, values[row : row + 1]))
        yield from (BadRow(start + row, bad[row]) for row in sorted(bad))
        if next_report.passed():
            next_report = Deadline(PROGRESS_SECONDS)
            log.info("looking for values that are refused: %d of %d rows", stop - first, end - first)


def _make_record(memory: ReplayMemory, row: int, incarnation: int, actor: tuple[int, str] | None, **why: Any) -> Record:
    """The record of a row for the quarantine; ``why`` has the fields of ``Record`` that say why it is there."""
    columns = {name: read_ring(ring, row, row + 1) for name, ring in memory.columns.items()}
    return Record(
        actor_id=actor[0] if actor else None,
        host=actor[1] if actor else None,
        incarnation=f"{incarnation:016x}" if incarnation else None,
        index=row,
        values=summarize_row(columns, 0),
        **why,
    )


def _count_by_actor(incarnations: Array, actor_of: ActorOf, most: int) -> str:
    """How many of the rows of these incarnations ``[n]`` each actor sent, in words; of ``most`` actors at most."""
    by_actor = Counter(incarnations.tolist()).most_common(most)
    return ", ".join(f"{n} from {_name_actor(incarnation, actor_of(incarnation))}" for incarnation, n in by_actor)


def _name_actor(incarnation: int, actor: tuple[int, str] | None) -> str:
    if not incarnation:
        return "an unknown actor"
    return f"actor {actor[0]} on {actor[1]} ({incarnation:016x})" if actor else f"actor process {incarnation:016x}"
