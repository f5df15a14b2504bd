"""Prometheus metrics, read from counters when they are scraped: the hot paths do nothing for them.

Each process has its own registry and endpoint. docs/metrics.md says what each metric means.
"""

from __future__ import annotations

from collections.abc import Mapping

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.errors import AddressError


def counter(name: str, text: str, value: float) -> Metric:
    """A counter as it stands; the name ends in ``_total``."""
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float | None) -> Metric:
    """A gauge as it stands; None is no sample."""
    return GaugeMetricFamily(name, text, value=value)


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A counter for each value of one label."""
    return _labelled(CounterMetricFamily(name, text, labels=[label]), values)


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A gauge for each value of one label."""
    return _labelled(GaugeMetricFamily(name, text, labels=[label]), values)


def _labelled(family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]) -> Metric:
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def info(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    """A gauge that is always 1; what there is to know is in its labels."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


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
