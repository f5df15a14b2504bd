"""Prometheus metrics, read from counters when they are scraped: the hot paths do nothing for them.

Each process has its own registry and endpoint. docs/metrics.md says what each metric means.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.config import MetricsConfig
from common.errors import AddressError
from common.server_config import TlsConfig
from common.tls import read_authorities, read_pair


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
        config: the address to listen on, and certificates if it is encrypted; read once.
        port: 0 takes a free one, None serves nothing.

    Raises:
        AddressError: the port is taken.
        ConfigError: a certificate cannot be read.
    """

    def __init__(self, collector: Collector, config: MetricsConfig, port: int | None) -> None:
        self.port: int | None = None
        if port is None:
            return
        registry = prometheus_client.CollectorRegistry()
        registry.register(collector)
        prometheus_client.ProcessCollector(registry=registry)
        prometheus_client.PlatformCollector(registry=registry)
        encryption = _encryption(config.tls) if config.tls else {}
        try:
            self._server, self._thread = prometheus_client.start_http_server(port, config.host, registry, **encryption)
        except OSError as error:
            place = f"{config.host}:{port}"
            raise AddressError(
                f"metrics: cannot listen on {place}: {error.strerror}; choose another port, or 0 for a free one"
            ) from error
        if isinstance(self._server.socket, ssl.SSLSocket):
            # Else the thread that accepts makes handshakes, and one that is never finished holds up all others.
            self._server.socket.do_handshake_on_connect = False  # type: ignore[attr-defined]
        self.port = int(self._server.server_port)

    def close(self) -> None:
        if self.port is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(timeout=5)


def _encryption(tls: TlsConfig) -> dict[str, Any]:
    """What prometheus-client takes, after a look at files that it would only name half of."""
    read_pair(tls.certificate, tls.key)
    if tls.client_ca is not None:
        read_authorities(tls.client_ca)
    asks = {"client_cafile": str(tls.client_ca), "client_auth_required": True} if tls.client_ca else {}
    return {"certfile": str(tls.certificate), "keyfile": str(tls.key), **asks}
