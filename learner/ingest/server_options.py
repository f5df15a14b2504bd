"""Options of the gRPC server, from the configuration."""

from __future__ import annotations

from common.config.server_config import ServerConfig
from common.wire.rpc import WINDOW_BYTES


def server_options(config: ServerConfig) -> list[tuple[str, int]]:
    """Options of the learner's server; ping limits match ``CLIENT_OPTIONS``, a taken port is an error."""
    limits = config.limits
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.http2.bdp_probe", 0),  # Else the window below grows, and with it what a held-back actor makes us hold.
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.max_allowed_incoming_connections", limits.max_connections or 2 * config.fleet),
        ("grpc.max_concurrent_streams", limits.max_connection_calls),
        ("grpc.server_handshake_timeout_ms", int(1000 * limits.handshake_seconds)),
        ("grpc.max_connection_idle_ms", int(1000 * config.lost_seconds)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_time_ms", 30_000),
    ]
