"""Prometheus metrics, read from counters when they are scraped: the hot paths do nothing for them.

Each process has its own registry and endpoint. docs/metrics.md says what each metric means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.errors import AddressError
from learner.status import Status


def counter(name: str, text: str, value: float) -> Metric:
    """A counter as it stands; the name ends in ``_total``."""
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float) -> Metric:
    """A gauge as it stands."""
    return GaugeMetricFamily(name, text, value=value)


class TrainerCollector(Collector):
    """What the trainer knows: steps, replay, records (every recorded key as one labelled gauge)."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        yield counter("crossborder_opt_steps_total", "Optimisation steps.", status.opt_steps)
        yield counter("crossborder_samples_drawn_total", "Items drawn from the replay.", status.sampled)
        yield gauge("crossborder_replay_size_items", "Items that can be drawn.", status.replay_size)
        yield counter("crossborder_trainer_wait_seconds_total", "Waited for items.", status.trainer_wait_seconds)
        yield gauge("crossborder_best_score", "Highest evaluation score.", status.best_score)
        skipped = status.evaluations_skipped
        yield counter("crossborder_evaluations_skipped_total", "Due while another one still ran.", skipped)
        record = GaugeMetricFamily("crossborder_record", "The newest value of each recorded key.", labels=["key"])
        for key, value in status.record.items():
            record.add_metric([key], value)
        yield record


class MetricsServer:
    """Serves /metrics in a thread of its own until ``close``.

    Args:
        collector: what is served, beside the process's own figures.
        host: address to listen on.
        port: 0 takes a free one, None serves nothing.

    Raises:
        AddressError: the port is taken.
    """

    def __init__(self, collector: Collector, host: str, port: int | None) -> None:
        self.port: int | None = None
        if port is None:
            return
        registry = prometheus_client.CollectorRegistry()
        registry.register(collector)
        prometheus_client.ProcessCollector(registry=registry)
        prometheus_client.PlatformCollector(registry=registry)
        try:
            self._server, self._thread = prometheus_client.start_http_server(port, host, registry)
        except OSError as error:
            raise AddressError(
                f"metrics: cannot listen on {host}:{port}: {error.strerror}; choose another port, or 0 for a free one"
            ) from error
        self.port = int(self._server.server_port)

    def close(self) -> None:
        if self.port is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(timeout=5)
