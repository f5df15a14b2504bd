from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from common.config.server_config import ServerConfig, TlsConfig
from common.errors import ConfigError
from common.wire.rpc import CLIENT_OPTIONS
from crossborder.certificates.authority import make_files
from learner.ingest.server_options import MAX_CONNECTIONS_OPTION, server_credentials, server_options


def options(**server: object) -> dict[str, int]:
    return dict(server_options(ServerConfig.model_validate(server)))


def test_clients_may_ping_as_often_as_ours_do() -> None:
    client, server = dict(CLIENT_OPTIONS), options()
    assert client["grpc.keepalive_time_ms"] >= server["grpc.http2.min_recv_ping_interval_without_data_ms"]
    assert server["grpc.http2.max_ping_strikes"] == 0


def test_a_port_that_another_server_has_is_not_shared() -> None:
    assert options()["grpc.so_reuseport"] == 0


def test_connections_are_twice_the_fleet() -> None:
    assert options()[MAX_CONNECTIONS_OPTION] == 2 * 256
    assert options(max_actors=1)[MAX_CONNECTIONS_OPTION] == 2 * 16


def test_times_and_sizes_are_those_of_the_configuration() -> None:
    found = options(max_message_bytes=1 << 20, lost_seconds=30.0, limits={"handshake_seconds": 1.5})
    assert found["grpc.max_receive_message_length"] == 1 << 20
    assert found["grpc.max_connection_idle_ms"] == 30_000
    assert found["grpc.server_handshake_timeout_ms"] == 1500


def test_credentials_need_files_that_can_be_read(tmp_path: Path) -> None:
    make_files(tmp_path, ["gpu-host"], 1, renew=False)
    files = {"certificate": tmp_path / "server.pem", "key": tmp_path / "server.key"}
    assert isinstance(server_credentials(TlsConfig(**files)), grpc.ServerCredentials)
    files["key"].unlink()
    with pytest.raises(ConfigError, match=r"server\.key"):
        server_credentials(TlsConfig(**files))
