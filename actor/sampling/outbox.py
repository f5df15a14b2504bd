"""Rows on their way from a recorder to a sink: they are mapped, and get priorities."""

from __future__ import annotations

from typing import Any, Protocol

from actor.sampling.item_maker import ItemMaker
from actor.sampling.priority import NEXT, SEEN, add_priority, add_priority_to_rows
from actor.sampling.recorder import Recorder
from common.data import PRIORITY, Items, Schema
from common.errors import PluginError
from common.interfaces import Agent
from common.parts import Parts


class ItemSink(Protocol):
    """Takes a sampler's rows. The sampler cannot tell whether a network lies behind it."""

    def takes(self, rows: int) -> bool:
        """Whether to push the rows that were gathered so far; asked after each round."""

    def push(self, items: Items) -> None:
        """Take rows, or items of a user's step processor; blocks while the other side holds back.

        The arrays are valid during the call.
        """


class RowWatcher(Protocol):
    """Takes the rows of a sampler too, before they are mapped."""

    def add(self, rows: Items) -> None:
        """Take rows, ``[n, *shape]``, which are valid during the call; does not wait."""


class Outbox:
    """Pushes what was recorded as the learner expects it.

    Args:
        parts: say how rows are changed before they are pushed.
        records: the rows; if they get priorities, it has noted the agent's observations before and after each step.
        recording: takes the rows too; None: they are not recorded. It must be None for items of a step processor.
    """

    def __init__(self, parts: Parts, records: Recorder | ItemMaker, recording: RowWatcher | None) -> None:
        self._parts, self._records, self._recording = parts, records, recording
        self._agreed = agreed_schema(parts)

    def push(self, agent: Agent, sink: ItemSink) -> None:
        """Push the rows that were gathered, if there are any.

        Raises:
            SchemaMismatchError: the map of rows makes other columns than it says.
        """
        if self._records.rows:
            if self._recording is not None:
                self._recording.add(self._records.items())
            sink.push(self._make_items(agent))
            self._records.clear()

    def _make_items(self, agent: Agent) -> Items:
        """The rows as the learner expects them."""
        items, records, row_map = self._records.items(), self._records, self._parts.row_map
        if row_map is not None:
            items = map_rows(row_map.map, items, self._agreed)
        if not self._parts.has_priorities:
            return items
        if isinstance(records, ItemMaker):
            return add_priority(items, agent)
        return add_priority_to_rows(items, records.notes(SEEN), records.notes(NEXT), agent)


def agreed_schema(parts: Parts) -> Schema:
    """The columns that are sent, without the priorities that the actor adds."""
    return parts.schema.without(PRIORITY) if parts.has_priorities else parts.schema


def map_rows(function: Any, rows: Items, schema: Schema) -> Items:
    """The rows that a map makes of ``rows``.

    Raises:
        SchemaMismatchError: they have other columns than the map says.
        PluginError: the map made another number of rows.
    """
    given = {name: column.view() for name, column in rows.items()}
    for column in given.values():
        column.flags.writeable = False  # The recorder goes on with these arrays.
    mapped: Items = function(given)
    count, expected = schema.count(mapped), len(next(iter(rows.values())))
    if count != expected:
        raise PluginError(f"step_processor: expected a map of {expected} rows to as many, found {count}")
    return mapped
