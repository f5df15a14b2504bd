"""Items gathered into batches (border's ReplayBufferProxy)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

from common.config.run_config import PushConfig
from common.data import NO_MODEL, Items, ModelVersion, Schema
from common.wire.frames import BufferedItems, ItemBuffer


class BatchSink(Protocol):
    """Takes full batches."""

    def send(self, batch: BufferedItems, behaviour: ModelVersion) -> None:
        """Take a batch of at least one row; waits while the learner holds the actor back."""


class ReplayBufferProxy:
    """An ``ItemSink`` that hands over batches of ``n_buffer`` items, in order.

    The next item also completes a batch that is older than ``flush_seconds``, even if it is not full.

    Args:
        schema: agreed with the learner; every push is checked against it.
        config: n_buffer and flush_seconds.
        sink: takes the batches.
        clock: seconds, monotonic.
    """

    def __init__(
        self, schema: Schema, config: PushConfig, sink: BatchSink, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._schema, self._sink, self._clock = schema, sink, clock
        self._n_buffer, self._flush_seconds = config.n_buffer, config.flush_seconds or math.inf
        self._buffer = ItemBuffer(schema)
        self._due = math.inf
        self._behaviour = NO_MODEL
        self.version = NO_MODEL
        """The model that acts now; a batch carries the version that chose its first action."""

    def push(self, items: Items) -> None:
        """Add items, and hand over each batch that becomes full.

        Raises:
            SchemaMismatchError: the items do not have the agreed columns.
        """
        rows, buffer = self._schema.count(items), self._buffer
        while rows > (room := self._n_buffer - buffer.rows):
            self.push({name: column[:room] for name, column in items.items()})
            items, rows = {name: column[room:] for name, column in items.items()}, rows - room
        if not buffer.rows:
            self._due, self._behaviour = self._clock() + self._flush_seconds, self.version
        buffer.add(items, rows)
        if buffer.rows == self._n_buffer or self._clock() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Hand over the remaining items as a batch."""
        if self._buffer.rows:
            self._sink.send(self._buffer.take(), self._behaviour)
