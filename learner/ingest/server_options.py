"""How a gRPC server is set up: its options, where it listens, its TLS, its health and its file descriptors.

Each connection takes a descriptor, and a process without a free one can accept no connection.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from common.config.server_config import MESSAGE_BYTES, ServerConfig, TlsConfig
from common.errors import AddressError
from common.wire.address import join_address, split_address
from common.wire.endpoints import listen_at_first, require_free_port
from common.wire.rpc import WINDOW_BYTES
from common.wire.tls import read_authorities, read_pair
from common.wire.watched import Watched

log = logging.getLogger(__name__)
MAX_CONNECTIONS_OPTION: Final = "grpc.max_allowed_incoming_connections"
MAX_LIMIT: Final = 65_536
"""The limit is not raised beyond this number."""
RESERVED: Final = 64
"""Descriptors that connections of actors may not take: for files, and for scrapers of /metrics."""
SCARCE: Final = 0.8
"""The log warns when more than this part of the limit is taken."""
LOOK_SECONDS: Final = 10.0
_OPEN = Path("/proc/self/fd")

SERVER_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # With probes the window below would grow, and with it the bytes that a held-back actor makes its server keep.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    # Messages that gRPC itself has compressed are refused: payloads have their own compression, and the bytes of a
    # message say how many were received for it (``WaitingBytes``).
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 30_000),
)
"""Options of every server of ours: ping limits match ``CLIENT_OPTIONS``, and a port that is taken is an error."""


def server_options(
    config: ServerConfig, message_bytes: int = MESSAGE_BYTES, descriptors: int = MAX_LIMIT
) -> list[tuple[str, int]]:
    """Options of a server with these settings and messages, in a process that can open this many descriptors.

    Connections beyond the descriptors are closed; without the limit gRPC would leave them waiting.
    """
    return [
        *SERVER_OPTIONS,
        ("grpc.max_receive_message_length", message_bytes),
        # An actor keeps one connection, and opens another before it lets go of one that has failed.
        (MAX_CONNECTIONS_OPTION, _connections_within(2 * config.fleet, descriptors)),
        ("grpc.max_concurrent_streams", config.connection_calls),
        ("grpc.server_handshake_timeout_ms", int(1000 * config.handshake_seconds)),
        ("grpc.max_connection_idle_ms", int(1000 * config.lost_seconds)),
    ]


def _connections_within(wanted: int, limit: int) -> int:
    """How many of the wanted connections fit below the limit; the log says so if not all of them fit."""
    fit = max(1, limit - count_descriptors() - RESERVED)
    if fit < wanted:
        log.warning("only %d of %d connections fit into %d file descriptors (ulimit -n)", fit, wanted, limit)
    return min(fit, wanted)


def listen(server: grpc.aio.Server, addresses: Sequence[str], tls: TlsConfig | None) -> tuple[str, int]:
    """Have a server listen at the first of these addresses that no other program has.

    Returns:
        HOST:PORT, and the port alone.

    Raises:
        AddressError: other programs have all of them.
        ConfigError: a file of ``tls`` cannot be read.
    """
    credentials = None if tls is None else server_credentials(tls)

    def listen_at(address: str) -> tuple[str, int]:
        require_free_port("listen", *split_address(address))
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise AddressError(f"{address}: cannot listen there") from error
        return join_address(split_address(address)[0], port), port

    return listen_at_first(addresses, listen_at)


async def start(server: grpc.aio.Server, service: str) -> health.aio.HealthServicer:
    """Start a server, which says by its health from now on that it serves this service."""
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await server.start()
    for name in ("", service):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    return servicer


def server_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """TLS 1.2 and above. Changed files are used from the next connection on; open connections stay as they are.

    Raises:
        ConfigError: a file cannot be read.
    """

    def read() -> grpc.ServerCertificateConfiguration:
        authorities = read_authorities(tls.client_ca) if tls.client_ca else None
        return grpc.ssl_server_certificate_configuration([read_pair(tls.certificate, tls.key)], authorities)

    # gRPC calls ``changed`` on its own threads, before each handshake; the event loop never calls it. If two handshakes
    # begin while the files change, one may still get the former pair, which is still valid. While only one file has
    # been replaced, certificate and key do not fit each other: ``read`` refuses, and the former pair stays in use.
    watched = Watched(tls.files, read)
    last = watched.get()

    def changed() -> Any:  # None means no change; the type stubs do not know that.
        nonlocal last
        before, last = last, watched.get()
        return None if last is before else last

    return grpc.dynamic_ssl_server_credentials(last, changed, require_client_authentication=tls.client_ca is not None)


def raise_descriptor_limit() -> int:
    """Raise this process's soft limit (often 1024) to its hard limit, or to 65,536; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_LIMIT if hard == resource.RLIM_INFINITY else min(hard, MAX_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft if soft != resource.RLIM_INFINITY else MAX_LIMIT


def count_descriptors() -> int:
    """The descriptors that this process has open."""
    return sum(1 for _ in _OPEN.iterdir()) - 1  # Listing the directory takes one.


class DescriptorWatch:
    """Warns in the log when most descriptors are taken, and warns again only after enough were free in between.

    Args:
        limit: descriptors that can be open.
        count: descriptors that are open.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        limit: int,
        count: Callable[[], int] = count_descriptors,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._count, self._clock = limit, count, clock
        self._next_look, self._has_warned = clock(), False

    def tick(self) -> None:
        """Count the open descriptors, at most once in ``LOOK_SECONDS``."""
        if self._clock() < self._next_look:
            return
        self._next_look = self._clock() + LOOK_SECONDS
        found = self._count()
        scarce = found >= SCARCE * self._limit
        if scarce and not self._has_warned:
            log.warning("%d of %d file descriptors are open; raise ulimit -n (LimitNOFILE)", found, self._limit)
        self._has_warned = scarce
