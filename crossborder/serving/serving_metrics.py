"""The metrics of an acting service; docs/metrics.md explains each of them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from crossborder.serving.figures import Figures
from crossborder.serving.sessions import Sessions
from learner.ingest.refusals import BucketCounts, IngestCounts
from learner.records.exposition import counter, counters, gauge


class ServingCollector(Collector):
    """Reads the present values at each scrape, in a thread of its own, while the event loop writes them.

    Each value is read whole; two values of one scrape may be a moment apart.
    """

    def __init__(self, sessions: Sessions, figures: Figures, counts: IngestCounts) -> None:
        self._sessions, self._figures, self._counts = sessions, figures, counts

    def collect(self) -> Iterable[Metric]:
        sessions, figures, counts = self._sessions, self._figures, self._counts
        yield gauge("crossborder_serving_sessions", "Sessions, with and without a connection.", len(sessions))
        yield gauge("crossborder_serving_lanes", "Lanes of all sessions.", sessions.used_lanes)
        yield gauge("crossborder_serving_connected_lanes", "Lanes with a connection.", sessions.connected_lanes)
        yield counter("crossborder_serving_sessions_opened_total", "Sessions opened.", figures.opened)
        yield counter("crossborder_serving_resumes_total", "Sessions that came back.", figures.resumed)
        yield counter("crossborder_serving_sessions_expired_total", "Sessions that stayed away.", figures.expired)
        yield counter("crossborder_serving_actions_total", "Actions given to lanes.", figures.actions)
        yield counter("crossborder_serving_repeated_steps_total", "Steps that came again.", figures.repeated)
        yield counter("crossborder_serving_episodes_total", "Episodes that ended.", figures.episodes)
        yield counter("crossborder_serving_returns_total", "Sum of the returns of ended episodes.", figures.return_sum)
        yield counters("crossborder_serving_refused_total", "Requests refused.", "reason", figures.refused)
        yield counters("crossborder_serving_over_limit_total", "Calls over a limit.", "limit", counts.over_limit)
        yield counter("crossborder_serving_unauthenticated_total", "Calls without a token.", counts.unauthenticated)
        yield _histogram("crossborder_serving_batch_lanes", "Lanes in one forward pass.", figures.batch_lanes)
        yield _histogram("crossborder_serving_wait_seconds", "Waits of steps for others.", figures.wait_seconds)
        yield _histogram(
            "crossborder_serving_answer_seconds", "From a step's arrival to its action.", figures.answer_seconds
        )


def _histogram(name: str, text: str, counts: BucketCounts) -> Metric:
    buckets = [("+Inf" if math.isinf(bound) else str(bound), float(count)) for bound, count in counts.buckets()]
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=counts.sum)
