"""When ``opt`` raises: which items it had drawn, and whose they are."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from common.data import Array
from learner.replay.memory import ReplayMemory
from learner.replay.quarantine import Quarantine, Record, brief_row
from learner.replay.screening import ActorOf, item_at, named

NAMED: Final = 32
"""Items, and actors, that the message and the quarantine name."""


def tell_suspects(memory: ReplayMemory, drawn: Array, actor_of: ActorOf, quarantine: Quarantine) -> str:
    """Put the items of the batch that was drawn last into the quarantine, and say which they are.

    Args:
        memory: the items are in.
        drawn: their absolute indices ``[n]``, in any order; empty if they are not known.
        actor_of: who made an item.
        quarantine: takes a record of the first ``NAMED`` of them.
    """
    if not len(drawn):
        return "opt had drawn no items, or a batch that was gathered before the run was resumed"
    items = np.unique(drawn)
    incarnations = memory.origins(items)
    by_actor = Counter(incarnations.tolist()).most_common(NAMED)
    shown = ", ".join(map(str, items[:NAMED].tolist())) + (", …" if len(items) > NAMED else "")
    origins = ", ".join(f"{n} from {named(incarnation, actor_of(incarnation))}" for incarnation, n in by_actor)
    for item, incarnation in zip(items[:NAMED].tolist(), incarnations.tolist(), strict=False):
        actor = actor_of(incarnation)
        quarantine.add(
            Record(
                reason="drawn before opt raised",
                message=f"one of {len(items)} items that opt drew last before it raised",
                actor_id=actor[0] if actor else None,
                host=actor[1] if actor else None,
                incarnation=f"{incarnation:016x}" if incarnation else None,
                item=item,
                values=brief_row(item_at(memory, item), 0),
            )
        )
    quarantine.write()
    return (
        f"opt had last drawn {len(items)} items, of {items[0]} to {items[-1]}: {shown}; {origins}; "
        "replay-inspect shows them in the quarantine"
    )
