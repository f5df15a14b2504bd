"""Items of an earlier life that today's rules refuse: found when a replay is opened, and never drawn.

Release 0.1 stored any finite value, and a disk may have damaged others. One such item can end a run, again after each
``--resume``; so all items are looked at once, in chunks, before the first draw.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from common.data import Array, Column, Items
from common.errors import BadValue
from common.process.clocks import Deadline
from learner.replay.memory import ReplayMemory
from learner.replay.quarantine import Quarantine, Record, brief_row
from learner.replay.ring import read_ring
from learner.replay.value_rules import ValueRules

log = logging.getLogger(__name__)
CHUNK_BYTES: Final = 16 << 20
PROGRESS_SECONDS: Final = 5.0
NAMED: Final = 10
"""Items that the log and the quarantine name one by one."""
ActorOf = Callable[[int], tuple[int, str] | None]
"""Takes an incarnation; gives the actor's id and host, None if they are no longer known."""


@dataclass(frozen=True)
class Unfit:
    """An item, by absolute index, with the first of its values that its column may not hold."""

    item: int
    bad: BadValue


def screen(memory: ReplayMemory, rules: ValueRules, actor_of: ActorOf, quarantine: Quarantine) -> int:
    """Exclude all items that hold a value which the rules refuse, and say whose they are.

    Args:
        memory: of a run that goes on.
        rules: of this run.
        actor_of: who made an item.
        quarantine: takes a record of the first ``NAMED`` items.

    Returns:
        How many were excluded.
    """
    found = list(_unfit(memory, rules))
    if not found:
        return 0
    indices = np.array([unfit.item for unfit in found], np.int64)
    incarnations = memory.origins(indices)
    memory.exclude(indices)
    for unfit, incarnation in zip(found[:NAMED], incarnations.tolist(), strict=False):
        quarantine.add(_record(memory, unfit, incarnation, actor_of(incarnation)))
    quarantine.write()
    by_actor = Counter(incarnations.tolist()).most_common(NAMED)
    log.warning(
        "%d items of the replay hold values that are refused, and will never be drawn; the first: %s; %s",
        len(found),
        found[0].bad.at(f"item {found[0].item}"),
        ", ".join(f"{n} from {named(incarnation, actor_of(incarnation))}" for incarnation, n in by_actor),
    )
    return len(found)


def named(incarnation: int, actor: tuple[int, str] | None) -> str:
    """An actor as messages have it."""
    if not incarnation:
        return "an unknown actor"
    return f"actor {actor[0]} on {actor[1]} ({incarnation:016x})" if actor else f"actor process {incarnation:016x}"


def item_at(memory: ReplayMemory, item: int) -> Items:
    """What lies where an item is, by absolute index, each column ``[1, *shape]``; it may be overwritten meanwhile."""
    return {column.name: _read(memory, column, item, item + 1) for column in memory.schema.columns}


def _unfit(memory: ReplayMemory, rules: ValueRules) -> Iterator[Unfit]:
    """All items that can be drawn and hold a value which the rules refuse, in order."""
    columns = [column for column in memory.schema.columns if rules.can_refuse(column)]
    if not columns:
        return
    first, end = memory.first(), memory.committed
    rows = max(1, CHUNK_BYTES // max(column.row_bytes for column in columns))
    told = Deadline(PROGRESS_SECONDS)
    for start in range(first, end, rows):
        stop = min(end, start + rows)
        bad: dict[int, BadValue] = {}
        for column in columns:
            values = _read(memory, column, start, stop)
            for row in np.flatnonzero(rules.refused(column, values)).tolist():
                bad.setdefault(row, rules.first_refused(column, values[row : row + 1]))
        yield from (Unfit(start + row, bad[row]) for row in sorted(bad))
        if told.passed():
            told = Deadline(PROGRESS_SECONDS)
            log.info("looking for values that are refused: %d of %d items", stop - first, end - first)


def _read(memory: ReplayMemory, column: Column, start: int, stop: int) -> Array:
    """A column of the items ``[start, stop)``, ``[n, *shape]``."""
    stored = read_ring(memory.columns[column.name], start, stop)
    if not column.frames or memory.frames is None:
        return stored
    stacks = np.empty((len(stored), *column.shape), column.dtype)
    memory.frames.take(np.arange(start, stop) % memory.n_slots, stored, stacks)
    return stacks


def _record(memory: ReplayMemory, unfit: Unfit, incarnation: int, actor: tuple[int, str] | None) -> Record:
    bad = unfit.bad
    return Record(
        reason="found bad",
        message=bad.at(f"item {unfit.item}"),
        actor_id=actor[0] if actor else None,
        host=actor[1] if actor else None,
        incarnation=f"{incarnation:016x}" if incarnation else None,
        item=unfit.item,
        column=bad.column,
        expected=bad.expected,
        found=bad.found,
        values=brief_row(item_at(memory, unfit.item), 0),
    )
