"""The metrics of an acting service; docs/metrics.md explains each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from common.config.server_config import TlsConfig
from crossborder.serving.figures import Figures, PolicyFigures
from crossborder.serving.served_policy import ServedPolicy
from crossborder.serving.sessions import Sessions
from learner.ingest.refusals import BucketCounts, IngestCounts
from learner.records.exposition import certificate_expiry, counter, counters, gauge, gauges


class ServingCollector(Collector):
    """Reads the present values at each scrape, in a thread of its own, while the event loop writes them.

    Each value is read whole; two values of one scrape may be a moment apart.
    """

    def __init__(self, sessions: Sessions, figures: Figures, counts: IngestCounts, tls: TlsConfig | None) -> None:
        self._sessions, self._figures, self._counts, self._tls = sessions, figures, counts, tls

    def collect(self) -> Iterable[Metric]:
        sessions, figures, counts = self._sessions, self._figures, self._counts
        yield gauge("crossborder_serving_sessions", "Sessions, with and without a connection.", len(sessions))
        yield gauge("crossborder_serving_lanes", "Lanes of all sessions.", sessions.used_lanes)
        yield gauge("crossborder_serving_connected_lanes", "Lanes with a connection.", sessions.connected_lanes)
        yield counter("crossborder_serving_sessions_opened_total", "Sessions opened.", figures.opened)
        yield counter("crossborder_serving_resumes_total", "Sessions that came back.", figures.resumed)
        yield counter("crossborder_serving_sessions_expired_total", "Sessions that stayed away.", figures.expired)
        yield counters("crossborder_serving_refused_total", "Requests refused.", "reason", dict(figures.refused))
        yield counters("crossborder_serving_over_limit_total", "Calls over a limit.", "limit", counts.over_limit)
        yield counter("crossborder_serving_unauthenticated_total", "Calls without a token.", counts.unauthenticated)
        yield certificate_expiry({"serving": self._tls})
        yield from _collect_policies(sessions.policies)


def _collect_policies(policies: Mapping[str, ServedPolicy]) -> Iterable[Metric]:
    """The metrics of each policy; Prometheus takes the empty name of a single policy as no label."""
    counts = {name: policy.figures for name, policy in policies.items()}

    def total(name: str, text: str, read: Callable[[PolicyFigures], float]) -> Metric:
        return counters(f"crossborder_serving_{name}", text, "policy", {key: read(one) for key, one in counts.items()})

    def histogram(name: str, text: str, read: Callable[[PolicyFigures], BucketCounts]) -> Metric:
        family = HistogramMetricFamily(f"crossborder_serving_{name}", text, labels=["policy"])
        for key, figures in counts.items():
            family.add_metric([key], *read(figures).exposed())
        return family

    yield gauges(
        "crossborder_serving_opt_steps",
        "Opt steps of the model that acts.",
        "policy",
        {name: policy.player.opt_steps for name, policy in policies.items()},
    )
    yield total("actions_total", "Actions given to lanes.", lambda figures: figures.actions)
    yield total("repeated_steps_total", "Steps that came again.", lambda figures: figures.repeated)
    yield total("episodes_total", "Episodes that ended.", lambda figures: figures.episodes)
    yield total("returns_total", "Sum of the returns of ended episodes.", lambda figures: figures.return_sum)
    yield total("policies_taken_up_total", "Newer policies that act since.", lambda figures: figures.taken_up)
    yield total("policies_refused_total", "Newer policies that cannot act.", lambda figures: figures.not_taken_up)
    # If answers are slow, these three say why: small batches, waits for other lanes, or a slow policy.
    yield histogram("batch_lanes", "Lanes in one forward pass.", lambda figures: figures.batch_lanes)
    yield histogram("wait_seconds", "Waits of steps for others.", lambda figures: figures.wait_seconds)
    yield histogram("answer_seconds", "From a step's arrival to its action.", lambda figures: figures.answer_seconds)
