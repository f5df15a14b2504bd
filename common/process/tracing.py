"""Spans for OpenTelemetry: where the time of a batch goes, from its steps to the model that has learnt from it.

The spans of one batch are one trace, whose first span is the actor's. Its name travels with the batch as a *trace
parent*, the text that W3C's Trace Context (https://www.w3.org/TR/trace-context) defines. Spans are recorded when they
are over, and a thread of the library sends them to the collector. The library's queue is bounded: if it is full, spans
are dropped, and no code waits.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import socket
import time
from typing import Final

log = logging.getLogger(__name__)
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
EXPORT_SECONDS: Final = 2.0
"""A collector that takes longer for an answer loses spans, unless ``OTEL_EXPORTER_OTLP_TIMEOUT`` is set. The end of a
process waits for its last spans, so it waits this long if there is no collector."""
PARENT_BYTES: Final = 55
"""The size of a trace parent: version, trace, span and flags, in hexadecimal digits, and three hyphens."""
_KEY: Final = "traceparent"
_PARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Tracing:
    """Records spans of this process; from any thread.

    Raises:
        ImportError: the packages of ``crossborder[otel]`` are not installed.
    """

    def __init__(self, service: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        name = os.environ.get("OTEL_SERVICE_NAME", f"crossborder-{service}")
        process: dict[str, str | int] = {
            "service.name": name,
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
        }
        timeout = None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else EXPORT_SECONDS
        provider = TracerProvider(resource=Resource.create(process))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=timeout)))
        self._tracer = provider.get_tracer("crossborder")
        self._propagator, self._set_span = TraceContextTextMapPropagator(), set_span_in_context
        self.flush = provider.force_flush

    def begin_trace(self, name: str, began: float, **attributes: int) -> str:
        """Record the first span of a trace, which began at this time on the monotonic clock and ends now.

        Returns:
            The trace parent of later spans; empty if the sampler (``OTEL_TRACES_SAMPLER``) leaves the trace out.
        """
        span = self._tracer.start_span(name, start_time=_unix_ns(began), attributes=attributes)
        span.end()
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._set_span(span))
        return carrier[_KEY] if span.get_span_context().trace_flags.sampled else ""

    def record(self, name: str, parent: str, began: float, ended: float, **attributes: int) -> None:
        """Record a span of the trace that ``parent`` names; ``began`` and ``ended`` are on the monotonic clock."""
        context = self._propagator.extract({_KEY: parent})
        span = self._tracer.start_span(name, context, start_time=_unix_ns(began), attributes=attributes)
        span.end(_unix_ns(max(began, ended)))


def is_trace_parent(text: str) -> bool:
    """Whether a text, which may come from a stranger, is a trace parent."""
    return _PARENT.fullmatch(text) is not None


@functools.cache
def open_tracing(service: str) -> Tracing | None:
    """The spans of this process; None unless the environment names a collector."""
    if not os.environ.get(ENDPOINT):
        return None
    try:
        return Tracing(service)
    except ImportError as error:
        log.warning("%s is set, but there are no traces without crossborder[otel]: %s", ENDPOINT, error)
        return None


def _unix_ns(monotonic: float) -> int:
    return int(1e9 * (time.time() - time.monotonic() + monotonic))
