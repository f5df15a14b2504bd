"""Rows that can end a run, and the actors that sent them.

A disk may have damaged values, and the rules of a resumed run may be stricter than before. One row with a value that
the rules refuse can end a run, again after each ``--resume``. So ``screen`` looks at all rows once, in chunks, before
the first draw, and excludes those rows. ``report_suspects`` names the rows that ``opt`` had drawn when it raised.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
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
"""The most rows, and the most actors, that log and quarantine name when ``opt`` raises."""
ActorOf = Callable[[int], tuple[int, str] | None]
"""Takes an incarnation; gives the actor's id and host, None if they are no longer known."""


def screen(
    memory: ReplayMemory, rules: ValueRules, actor_of: ActorOf, quarantine: Quarantine, name: str = "the replay"
) -> int:
    """Exclude all rows that hold a value which the rules refuse, log which actors sent them, and return their number.

    Args:
        memory: of a run that goes on.
        rules: of this run.
        actor_of: who sent a row.
        quarantine: takes a record of the first ``N_NAMED`` rows.
        name: of the replay in the log and the records.
    """
    found = _find_bad_rows(memory, rules)
    if not len(found):
        return 0
    incarnations = memory.find_origins(found)
    memory.exclude(found)
    named = [(row, _find_bad_value(memory, rules, row)) for row in found[:N_NAMED].tolist()]
    for (row, bad), incarnation in zip(named, incarnations.tolist(), strict=False):
        why = {"reason": "found bad", "message": bad.at(f"row {row} of {name}")}
        why |= {"column": bad.column, "expected": bad.expected, "found": bad.found}
        quarantine.add(_make_record(memory, row, incarnation, actor_of(incarnation), **why))
    quarantine.write()
    log.warning(
        "%d rows of %s hold values that are refused, and will never be drawn; the first: %s; %s",
        len(found),
        name,
        named[0][1].at(f"row {found[0]}"),
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


def _find_bad_rows(memory: ReplayMemory, rules: ValueRules) -> Array:
    """The absolute indices of all rows that count and hold a value which the rules refuse, ``[n]`` int64, in order."""
    found = [np.empty(0, np.int64)]
    columns = [column for column in memory.schema.columns if rules.can_refuse(column)]
    first, end = memory.first(), memory.committed
    size = max(1, CHUNK_BYTES // max((column.row_bytes for column in columns), default=1))
    next_report = Deadline(PROGRESS_SECONDS)
    for start in range(first, end, size):
        stop = min(end, start + size)
        is_bad = np.zeros(stop - start, np.bool_)
        for column in columns:
            is_bad |= rules.find_refused(column, read_ring(memory.columns[column.name], start, stop))
        found.append(start + np.flatnonzero(is_bad))
        if next_report.passed():
            next_report = Deadline(PROGRESS_SECONDS)
            log.info("looking for values that are refused: %d of %d rows", stop - first, end - first)
    return np.concatenate(found)


def _find_bad_value(memory: ReplayMemory, rules: ValueRules, row: int) -> BadValue:
    """The first value of a bad row that its column may not hold."""
    values = {name: read_ring(ring, row, row + 1) for name, ring in memory.columns.items()}
    columns = (column for column in memory.schema.columns if rules.can_refuse(column))
    refusing = next(column for column in columns if rules.find_refused(column, values[column.name]).any())
    return rules.find_first_refused(refusing, values[refusing.name])


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
    """How many of the rows of these incarnations ``[n]`` each actor sent, as text; it names at most ``most`` actors."""
    by_actor = Counter(incarnations.tolist()).most_common(most)
    return ", ".join(f"{n} from {_name_actor(incarnation, actor_of(incarnation))}" for incarnation, n in by_actor)


def _name_actor(incarnation: int, actor: tuple[int, str] | None) -> str:
    if not incarnation:
        return "an unknown actor"
    return f"actor {actor[0]} on {actor[1]} ({incarnation:016x})" if actor else f"actor process {incarnation:016x}"
