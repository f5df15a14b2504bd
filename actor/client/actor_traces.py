"""An actor's spans: they follow a batch now and then, from its steps to the first model that has learnt from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from common.data import NO_MODEL, ModelVersion
from common.process.tracing import open_tracing

EVERY_SECONDS: Final = 10.0
"""The time from one traced batch to the next, at least."""
PATIENCE: Final = 60.0
"""The next batch is traced after this time if no model has learnt from the one before."""


@dataclass
class _OpenTrace:
    parent: str
    put_at: float
    seq: int = 0
    """The number of the message that carries the batch; 0 while the batch waits."""
    first_sent_at: float = 0.0
    sent_at: float = 0.0
    is_acknowledged: bool = False
    model: ModelVersion | None = None
    """The model that has learnt from the batch; None until the learner names it."""
    model_heard_at: float = 0.0


class ActorTraces:
    """Traces one batch at a time.

    The acting thread hands batches over, a gRPC thread sends them, and the pusher's thread hears the learner. A
    lock guards the trace. Without a collector each method returns at once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._tracing, self._clock = open_tracing("actor"), clock
        self._lock = threading.Lock()
        self._trace: _OpenTrace | None = None
        self._next_at = clock()
        self._handed_over_at = clock()
        self._newest, self._newest_heard_at = NO_MODEL, 0.0

    def hand_over(self, rows: int, behaviour: ModelVersion) -> str:
        """Note a batch that goes into the spool now.

        Returns:
            The trace parent that travels with the batch; empty for nearly all batches.
        """
        if self._tracing is None:
            return ""
        with self._lock:
            began, now = self._handed_over_at, self._clock()
            self._handed_over_at = now
            trace = self._trace
            if trace is not None and trace.model is not None and behaviour >= trace.model:
                self._tracing.record("fetch", trace.parent, trace.model_heard_at, began)
                trace = self._trace = None
            if now < self._next_at or (trace is not None and now < trace.put_at + PATIENCE):
                return ""
            self._next_at = now + EVERY_SECONDS
            parent = self._tracing.begin_trace("act", began, rows=rows, opt_steps=behaviour.opt_steps)
            self._trace = _OpenTrace(parent, now) if parent else None
            return parent

    def note_sent(self, parent: str, seq: int) -> None:
        """Note that the batch with this trace parent goes out in message ``seq``, maybe for the second time."""
        with self._lock:
            trace = self._trace
            if trace is not None and trace.parent == parent:
                trace.seq, trace.sent_at = seq, self._clock()
                trace.first_sent_at = trace.first_sent_at or trace.sent_at

    def hear(self, acked_seq: int, newest: ModelVersion, learnt: str) -> None:
        """Note an answer of the learner.

        Args:
            acked_seq: the highest message that is stored.
            newest: the newest model.
            learnt: the trace parent of the batch from which it has learnt; empty in nearly all answers.
        """
        if self._tracing is None:
            return
        with self._lock:
            now, trace = self._clock(), self._trace
            if newest > self._newest:
                self._newest, self._newest_heard_at = newest, now
            if trace is None:
                return
            if trace.seq and acked_seq >= trace.seq and not trace.is_acknowledged:
                self._tracing.record("wait in the spool", trace.parent, trace.put_at, trace.first_sent_at)
                self._tracing.record("send", trace.parent, trace.sent_at, now)
                trace.is_acknowledged = True
            if learnt == trace.parent:
                trace.model, trace.model_heard_at = newest, self._newest_heard_at
