"""Rows that the learner's own process stores, without a network: played in turns, or copied from a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from common.data import Items
from learner.replay.memory import ReplayMemory
from learner.replay.value_rules import ValueRules
from learner.replay.writer import ReplayWriter

OWN: Final = 1
"""The incarnation under which the learner's own process stores rows."""


class LocalSink:
    """An ``ItemSink`` that writes into the replay of its own process.

    Args:
        memory: no other process writes to it.
        rules: decide which values may be stored.
        incarnation: under which the rows are stored. Each incarnation has its own lanes.
    """

    def __init__(self, memory: ReplayMemory, rules: ValueRules, incarnation: int = OWN) -> None:
        self._schema, self._rules, self._incarnation = memory.schema, rules, incarnation
        self._writer = ReplayWriter(memory)
        self._seq = self._writer.last_seq(incarnation)

    def takes(self, rows: int) -> bool:  # noqa: ARG002 - as in ItemSink
        """Whether the sink wants a push of this many rows: always."""
        return True

    def push(self, items: Items) -> None:
        """Store rows, or self-contained items; an empty batch stores nothing.

        Raises:
            SchemaMismatchError: they have other columns.
            RefusedError: a value may not be stored.
        """
        rows = self._schema.count(items)
        if rows:
            checked = self._rules.check(items, rows)
            self._seq += 1
            self._writer.append(checked, rows, incarnation=self._incarnation, seq=self._seq)

    def mark(self) -> dict[str, Any]:
        """See ``ReplayWriter.mark``."""
        return self._writer.mark()

    def roll_back(self, mark: Mapping[str, Any]) -> bool:
        """See ``ReplayWriter.roll_back``."""
        return self._writer.roll_back(mark, self._incarnation)
