"""Ingest's spans of traced batches, and which of these batches the trainer follows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from common.process.tracing import is_trace_parent, open_tracing
from learner.shared.followed_batch import FollowedBatch, TracedBatch

FOLLOW_SECONDS: Final = 60.0
"""A batch is given up if no model has learnt from it after this time: it may have been overwritten without a draw."""


class BatchTraces:
    """Records when traced batches are stored, and tells their actors which model has learnt from them.

    One batch at a time is followed through the trainer; of the others, only the storing is recorded.
    """

    def __init__(self, directory: Path) -> None:
        self._tracing = open_tracing("ingest")
        self._followed = FollowedBatch.open(directory, create=False) if self._tracing is not None else None
        self._followed_since = 0.0
        self._told = 0
        """Number of the newest batch whose actor has been told."""

    def note_stored(self, actor: int, trace_parent: str, rows: range, began: float) -> None:
        """Note that a batch is stored.

        Args:
            actor: its row of the actor table.
            trace_parent: as it came with the batch.
            rows: absolute indices of its rows.
            began: when ingest began to read the batch, on the monotonic clock.
        """
        if self._tracing is None or self._followed is None or not is_trace_parent(trace_parent):
            return
        now = time.monotonic()
        self._tracing.record("store", trace_parent, began, now, rows=len(rows))
        if self._told == self._followed.number or now > self._followed_since + FOLLOW_SECONDS:
            self._told = self._followed.number
            self._followed.follow(TracedBatch(actor, rows.start, rows.stop, trace_parent))
            self._followed_since = now

    def take_learnt(self, actor: int | None, newest_opt_steps: int) -> str:
        """The trace parent of the actor's batch from which the newest model has learnt; returned once, else empty."""
        followed = self._followed
        if followed is None or self._told == followed.number or followed.learnt != followed.number:
            return ""
        batch = followed.batch()
        if batch.actor != actor or newest_opt_steps < followed.opt_steps:
            return ""
        self._told = followed.number
        return batch.trace_parent
