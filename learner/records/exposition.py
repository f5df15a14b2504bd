"""Prometheus metrics with their values at the moment of a scrape, and the server of /metrics.

The processes count in shared memory and plain attributes. A collector builds the families of metrics from the counts
when it is scraped, so the hot paths pay nothing for metrics. docs/metrics.md says what each metric means.

The server is prometheus-client's own, which keeps few connections open and each for a short time.

So a stranger who reaches the port cannot harm the process that serves it. A new connection always gets in: if there are
too many, the oldest one is closed. No connection occupies a thread and a descriptor for long.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from common.config.server_config import TlsConfig
from common.errors import AddressError
from common.process.log import LogThrottle
from common.wire.address import join_address
from common.wire.tls import read_authorities, read_expiry, read_pair
from common.wire.watched import Watched

log = logging.getLogger(__name__)


def counter(name: str, text: str, value: float | None) -> Metric:
    """A counter; its name ends in ``_total``. For None it is exposed without a sample."""
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float | None) -> Metric:
    """A gauge; for None it is exposed without a sample."""
    return GaugeMetricFamily(name, text, value=value)


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A counter with a sample for each value of one label."""
    return _labelled(CounterMetricFamily(name, text, labels=[label]), values)


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A gauge with a sample for each value of one label."""
    return _labelled(GaugeMetricFamily(name, text, labels=[label]), values)


def _labelled(family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]) -> Metric:
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def info(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    """A gauge that is always 1 and has its information in its labels."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def certificate_expiry(ports: Mapping[str, TlsConfig | None]) -> Metric:
    """When the certificate of each port with TLS expires, from its file; one that cannot be read is left out."""
    found = {port: read_expiry(tls.certificate) for port, tls in ports.items() if tls is not None}
    values = {port: expiry for port, expiry in found.items() if expiry is not None}
    text = "Unix time at which the certificate expires."
    return gauges("crossborder_certificate_expiry_timestamp_seconds", text, "port", values)


def rank_info(run_id: str, rank: int, n_ranks: int) -> Metric:
    """The rank of this process in its run, to be joined to its other metrics by ``instance`` and ``job``."""
    labels = {"run_id": run_id, "rank": str(rank), "ranks": str(n_ranks)}
    return info("crossborder_rank_info", "The rank of this process.", labels)


MAX_CONNECTIONS: Final = 16
SECONDS: Final = 5.0
"""The time for a whole connection, from its first byte to its last, with the handshake of TLS."""
LOOK_SECONDS: Final = 0.25
"""The time between two searches for connections whose time is over."""
FAILURES_LOGGED_EVERY: Final = 60.0
LEAST_SCRAPE_SECONDS, MOST_SCRAPE_SECONDS = 1.0, 60.0
"""Seconds between scrapes of one scraper. Closer scrapes may be two people's; no process waits for a slower scraper."""
App: TypeAlias = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Scrapes:
    """The times of the last two scrapes. Threads that answer note them; the trainer waits for one."""

    def __init__(self) -> None:
        self._began = deque[float](maxlen=2)
        self._changed = threading.Condition()

    def note(self, began: float) -> None:
        """Note an answered scrape by the second of the monotonic clock at which it began."""
        with self._changed:
            self._began.append(began)
            self._changed.notify_all()

    def wait_for_next(self) -> bool:
        """Wait for a scrape that begins now or later, if a scraper comes regularly; return whether one came."""
        asked = time.monotonic()
        with self._changed:
            if len(self._began) < 2:
                return False
            interval = max(LEAST_SCRAPE_SECONDS, self._began[1] - self._began[0])
            if interval > MOST_SCRAPE_SECONDS or asked - self._began[1] > 2 * interval:
                return False
            return self._changed.wait_for(lambda: self._began[-1] >= asked, 2 * interval)


class MetricsServer:
    """Serves /metrics in separate threads until ``close``.

    Args:
        collector: of the metrics; those of the process itself (CPU, memory, descriptors) are added.
        host: to listen on.
        port: 0 takes a free port, None serves nothing.
        tls: certificates; changed files are used from the next connection on.
        pages: further answers by path; all other paths have the metrics.

    Raises:
        AddressError: the port is taken.
        ConfigError: a certificate cannot be read.
    """

    def __init__(
        self,
        collector: Collector,
        host: str,
        port: int | None,
        *,
        tls: TlsConfig | None = None,
        pages: Mapping[str, App] | None = None,
    ) -> None:
        self.port: int | None = None
        self._scrapes = Scrapes()
        if port is None:
            return
        context = watch_tls(tls) if tls else None
        try:
            self._server = _Server(host, port, context)
        except OSError as error:
            raise AddressError(f"metrics: cannot listen on {join_address(host, port)}: {error.strerror}") from error
        self._server.set_app(_make_app(collector, self._scrapes, pages or {}))
        self.port = int(self._server.server_port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(LOOK_SECONDS,), name="metrics", daemon=True
        )
        self._thread.start()

    def show_last(self) -> None:
        """Wait until the present values have been scraped, if a scraper comes at least once a minute."""
        if self._scrapes.wait_for_next():
            log.info("the last figures have been scraped")

    def close(self) -> None:
        if self.port is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(timeout=5)


def _make_app(collector: Collector, scrapes: Scrapes, pages: Mapping[str, App]) -> App:
    """The WSGI application: prometheus-client's, which notes each scrape and survives a value that cannot be read."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)
    prometheus_client.ProcessCollector(registry=registry)
    prometheus_client.PlatformCollector(registry=registry)
    answer, failures = prometheus_client.make_wsgi_app(registry), LogThrottle(FAILURES_LOGGED_EVERY)

    def app(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        began, page = time.monotonic(), pages.get(environment["PATH_INFO"])
        try:
            if page is not None:
                return page(environment, start)
            body: Iterable[bytes] = answer(environment, start)
        except Exception as error:  # A value that cannot be read must end neither training nor ingest.
            missed = failures.due()
            if missed is not None:
                log.error("metrics: a scrape failed (%d more)", missed, exc_info=error)
            start("500 Internal Server Error", [("Content-Length", "0")])
            return []
        scrapes.note(began)
        return body

    return app


def watch_tls(tls: TlsConfig) -> Watched[ssl.SSLContext]:
    """The TLS of a server that does not speak gRPC, read again when a file changes.

    Raises:
        ConfigError: a file cannot be read.
    """
    return Watched(tls.files, lambda: _tls_context(tls))


def _tls_context(tls: TlsConfig) -> ssl.SSLContext:
    read_pair(tls.certificate, tls.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # In TLS 1.3 a server sends tickets after the handshake. A client that reads them in one thread while it writes in
    # another, as websockets.sync does, may lose its first message (python/cpython#151508): one in a hundred did.
    context.num_tickets = 0
    context.load_cert_chain(tls.certificate, tls.key)
    if tls.client_ca is not None:
        read_authorities(tls.client_ca)
        context.load_verify_locations(tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class _Handler(WSGIRequestHandler):
    def get_environ(self) -> dict[str, Any]:
        return super().get_environ() | {"REMOTE_PORT": self.client_address[1]}

    def log_message(self, *_: object) -> None:
        """Log nothing: a scrape every few seconds is no event."""


class _Server(ThreadingWSGIServer):
    """Answers each connection in a thread, at most ``MAX_CONNECTIONS`` at one time.

    The accepting thread also ends connections, by shutting down their sockets. It cannot end a thread, but the thread
    that reads from or writes to such a socket gets an error and ends by itself.
    """

    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, context: Watched[ssl.SSLContext] | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._context = context
        self._open = dict[socket.socket, float]()
        """The second at which each connection began, the oldest first."""
        # The lock guards ``_open``: the accepting thread adds to it, and the thread of a connection removes from it.
        self._lock = threading.Lock()
        self._failures = LogThrottle(FAILURES_LOGGED_EVERY)
        super().__init__((host, port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            connection, address = super().get_request()
        except OSError as error:  # No descriptor is free. The sleep below keeps serve_forever from a busy loop.
            missed = self._failures.due()
            if missed is not None:
                log.warning("metrics: a connection could not be accepted: %s (%d more)", error.strerror, missed)
            time.sleep(LOOK_SECONDS)
            raise
        if self._context is not None:  # The connection's own thread does the handshake when it first reads.
            connection = self._context.get().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._open[connection] = time.monotonic()
            surplus = [*self._open][:-MAX_CONNECTIONS]
        self._end(surplus)
        return connection, address

    def service_actions(self) -> None:
        """End connections whose time is over; ``serve_forever`` calls this in each round."""
        latest = time.monotonic() - SECONDS
        with self._lock:
            late = [connection for connection, began in self._open.items() if began < latest]
        self._end(late)

    def _end(self, connections: Iterable[socket.socket]) -> None:
        for connection in connections:
            self._forget(connection)
            try:
                # Not the shutdown of TLS, whose state another thread uses.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError as error:
                log.debug("metrics: a connection had ended: %s", error)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.pop(connection, None)

    def shutdown_request(self, request: Any) -> None:
        self._forget(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log at DEBUG: an error on one connection concerns only its scraper."""
        log.debug("metrics: a connection from %s failed", client_address, exc_info=True)
