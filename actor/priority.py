"""First priorities from the actors (Ape-X, Horgan et al., arXiv:1803.00933, 3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from actor.proxy import BatchSink
from actor.sampler import ItemSink
from common.data import PRIORITY, Items, ModelVersion, Schema
from common.errors import PluginError
from common.interfaces import Agent
from common.wire.frames import BufferedItems


def add_priority(items: Items, agent: Agent) -> Items:
    """``items`` with a column ``priority``, float32 [n]: the absolute TD errors by the agent's present model.

    Raises:
        PluginError: the agent does not give one error for each item.
    """
    rows = len(next(iter(items.values())))
    td_error = np.abs(agent.td_error(items)).astype(PRIORITY.dtype)
    if td_error.shape != (rows,):
        raise PluginError(f"{type(agent).__name__}.td_error: expected shape [{rows}], found {list(td_error.shape)}")
    return {**items, PRIORITY.name: td_error}


class PrioritizedBatches:
    """A ``BatchSink`` that adds priorities to batches of ``schema`` and passes them on."""

    def __init__(self, sink: BatchSink, agent: Agent, schema: Schema) -> None:
        self._sink, self._agent, self._schema = sink, agent, schema

    def send(self, batch: BufferedItems, behaviour: ModelVersion) -> None:
        priority = add_priority(batch.items(self._schema), self._agent)[PRIORITY.name]
        columns = {**batch.columns, PRIORITY.name: priority.tobytes()}
        self._sink.send(replace(batch, columns=columns), behaviour)


class PrioritizedItems:
    """An ``ItemSink`` that adds priorities at each push and passes the items on, where there are no batches."""

    def __init__(self, sink: ItemSink, agent: Agent) -> None:
        self._sink, self._agent = sink, agent

    def push(self, items: Items) -> None:
        self._sink.push(add_priority(items, self._agent))
