"""What ingest counts for its metrics alone; it begins anew when ingest is restarted, as Prometheus expects."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

REFUSALS = ("schema", "payload", "sequence", "rows", "report", "values", "bounds")
"""Why a batch is refused: ``RefusedError.reason``, or ``schema``."""
JOIN_REFUSALS = ("protocol_mismatch", "bad_items", "too_many_actors", "over_limit", "stopping")
"""Why a join is refused: the name of the error on the wire."""
LIMITS = (
    "calls",
    "address_calls",
    "health_calls",
    "admin_calls",
    "joins",
    "address_joins",
    "address_actors",
    "address_failures",
    "handshake_seconds",
)
"""``server.limits`` that a call can meet."""


class Histogram:
    """Counts values by size (0.3 µs each; ``prometheus_client.Histogram`` takes five times as long).

    Args:
        bounds: upper bounds of the buckets, each inclusive and above the one before.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> Iterable[tuple[float, int]]:
        """How many values were at most each bound, the last of which is infinite."""
        total = 0
        for bound, count in zip((*self._bounds, math.inf), tuple(self._counts), strict=True):
            total += count
            yield float(bound), total


class IngestCounts:
    """Refusals by reason, calls without a valid token, open calls, and how long things take and lag."""

    def __init__(self) -> None:
        self.refused = Counter(dict.fromkeys(REFUSALS, 0))
        self.joins_refused = Counter(dict.fromkeys(JOIN_REFUSALS, 0))
        self.over_limit = Counter(dict.fromkeys(LIMITS, 0))
        self.open_calls = Counter({"calls": 0, "health_calls": 0, "admin_calls": 0})
        self.unauthenticated = 0
        self.quota_hold_seconds = {"items": 0.0, "models": 0.0}
        self.ack_seconds = Histogram((0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10))
        self.lag_steps = Histogram((0, *(2**n for n in range(17))))
        self.lag_seconds = Histogram((0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300))
