"""A collector of OpenTelemetry's spans: an HTTP server that reads OTLP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from common.process.tracing import ENDPOINT, open_tracing


@dataclass(frozen=True)
class Span:
    """A span as it came; its times are in nanoseconds since 1970."""

    service: str
    name: str
    trace: str
    began: int
    ended: int
    attributes: dict[str, int]


class Collector:
    """Takes spans on a port of its own until it is closed."""

    def __init__(self) -> None:
        self._came = threading.Condition()
        self._spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.environment = {
            ENDPOINT: f"http://127.0.0.1:{self._server.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def _take(self, request: ExportTraceServiceRequest) -> None:
        with self._came:
            for resource in request.resource_spans:
                named = {each.key: each.value.string_value for each in resource.resource.attributes}
                for span in (span for scope in resource.scope_spans for span in scope.spans):
                    values = {each.key: each.value.int_value for each in span.attributes}
                    times = span.start_time_unix_nano, span.end_time_unix_nano
                    self._spans.append(Span(named["service.name"], span.name, span.trace_id.hex(), *times, values))
            self._came.notify_all()

    def traces(self) -> dict[str, dict[str, Span]]:
        """The spans so far by name, by trace."""
        traces: dict[str, dict[str, Span]] = {}
        for span in self._spans:
            traces.setdefault(span.trace, {})[span.name] = span
        return traces

    def wait_for(self, *names: str, seconds: float = 30.0) -> dict[str, Span]:
        """The spans by name of the first trace that has all of these; fails if there is none in time."""

        def found() -> dict[str, Span] | None:
            return next((trace for trace in self.traces().values() if {*names} <= trace.keys()), None)

        with self._came:
            trace = self._came.wait_for(found, seconds)
            assert trace, [sorted(trace) for trace in self.traces().values()]
            return trace

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that gets the spans of this process."""
    collector = Collector()
    for name, value in collector.environment.items():
        monkeypatch.setenv(name, value)
    open_tracing.cache_clear()
    try:
        yield collector
    finally:
        open_tracing.cache_clear()
        collector.close()
