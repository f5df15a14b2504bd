"""Items gathered into batches (border's ReplayBufferProxy)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from common.config import PushConfig
from common.data import NO_MODEL, Array, Column, Items, ModelVersion, Schema


class BatchSink(Protocol):
    """Where full batches go."""

    def send(self, items: Items, rows: int, behaviour: ModelVersion) -> None:
        """Take ``items``, so many rows, without keeping their arrays; waits while the learner holds back."""


class ReplayBufferProxy:
    """An ``ItemSink`` that hands over ``n_buffer`` items at a time, in order.

    A batch older than ``flush_seconds`` goes with the next item even if it is not full.

    Args:
        schema: agreed with the learner; every push is checked against it.
        config: n_buffer and flush_seconds.
        sink: takes the batches.
        clock: seconds, monotonic.
    """

    def __init__(
        self, schema: Schema, config: PushConfig, sink: BatchSink, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._schema, self._config, self._sink, self._clock = schema, config, sink, clock
        self._pieces: dict[str, list[bytes]] = {column.name: [] for column in schema.columns}
        self._rows = 0
        self._began = 0.0
        self._behaviour = NO_MODEL
        self.version = NO_MODEL
        """The model that acts now; a batch is stamped with the one that chose its first action."""

    def push(self, items: Items) -> None:
        """Add items; hands over each batch that becomes full.

        Raises:
            SchemaMismatchError: the items do not have the agreed columns.
        """
        n_items = self._schema.count(items)
        taken = 0
        while taken < n_items:
            n = min(n_items - taken, self._config.n_buffer - self._rows)
            part = items if n == n_items else {name: items[name][taken : taken + n] for name in self._pieces}
            taken += n
            if n == self._config.n_buffer:
                self._sink.send(part, n, self.version)
            else:
                self._keep(part, n)

    def _keep(self, items: Items, rows: int) -> None:
        if self._rows == 0:
            self._began, self._behaviour = self._clock(), self.version
        for name, pieces in self._pieces.items():  # Bytes: rows of arrays take three times as long to copy.
            pieces.append(items[name].tobytes())
        self._rows += rows
        if self._rows == self._config.n_buffer or self._is_old():
            self.flush()

    def _is_old(self) -> bool:
        limit = self._config.flush_seconds
        return limit is not None and self._clock() - self._began >= limit

    def flush(self) -> None:
        """Hand over what there is."""
        if self._rows:
            rows, self._rows = self._rows, 0
            batch = {column.name: self._joined(column, rows) for column in self._schema.columns}
            self._sink.send(batch, rows, self._behaviour)

    def _joined(self, column: Column, rows: int) -> Array:
        flat: Array = np.frombuffer(bytearray().join(self._pieces[column.name]), column.dtype)
        self._pieces[column.name].clear()
        return flat.reshape(rows, *column.shape)
