"""Gathers rows into batches (border's ReplayBufferProxy)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from common.config.actor_config import PushConfig
from common.data import NO_MODEL, BufferedItems, Items, ModelVersion, Schema


class ReplayBufferProxy:
    """An ``ItemSink`` that hands over batches of at least ``n_buffer`` rows, in order.

    A round is never divided: its rows are in one batch. The next round also completes a batch that is older than
    ``flush_seconds``, even if it is not full.

    Args:
        schema: agreed with the learner; every push is checked against it.
        config: n_buffer and flush_seconds.
        send: takes each batch of at least one row, and the model that chose its first action; waits while the learner
            holds the actor back.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        schema: Schema,
        config: PushConfig,
        send: Callable[[BufferedItems, ModelVersion], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schema, self._send, self._clock = schema, send, clock
        self._n_buffer, self._flush_seconds = config.n_buffer, config.flush_seconds or math.inf
        self._due: float | None = None  # None: no row has been gathered since the last batch.
        self._behaviour = NO_MODEL
        self.version = NO_MODEL
        """The model that acts now; a batch carries the version that chose its first action."""

    def takes(self, rows: int) -> bool:
        """Whether the rows that were gathered so far complete a batch."""
        now = self._clock()
        if self._due is None:
            if not rows:
                return False
            self._due, self._behaviour = now + self._flush_seconds, self.version
        return rows >= self._n_buffer or now >= self._due

    def limits(self) -> tuple[int, float]:
        """The number of rows, and the time, at which the rows that were gathered complete a batch."""
        return self._n_buffer, math.inf if self._due is None else self._due

    def push(self, items: Items) -> None:
        """Hand over these rows as a batch.

        Raises:
            SchemaMismatchError: they do not have the agreed columns.
        """
        rows = self._schema.count(items)
        behaviour = self.version if self._due is None else self._behaviour
        self._due = None
        if rows:
            columns = {column.name: items[column.name].tobytes() for column in self._schema.columns}
            self._send(BufferedItems(rows, columns), behaviour)
