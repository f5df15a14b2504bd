from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from common.config.server_config import MESSAGE_BYTES, ServerConfig, TlsConfig
from common.errors import ConfigError
from common.wire.rpc import CLIENT_OPTIONS
from crossborder.certificates.authority import make_files
from learner.ingest.server_options import (
    LOOK_SECONDS,
    MAX_CONNECTIONS_OPTION,
    MAX_LIMIT,
    RESERVED,
    DescriptorWatch,
    count_descriptors,
    raise_descriptor_limit,
    server_credentials,
    server_options,
)
from tests.clocks import Clock


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
    found = options(lost_seconds=4.5)
    assert found["grpc.max_receive_message_length"] == MESSAGE_BYTES
    assert dict(server_options(ServerConfig(), 1 << 20))["grpc.max_receive_message_length"] == 1 << 20
    assert found["grpc.max_connection_idle_ms"] == 4_500
    assert found["grpc.server_handshake_timeout_ms"] == 1500


def test_credentials_need_files_that_can_be_read(tmp_path: Path) -> None:
    make_files(tmp_path, ["gpu-host"], 1, renew=False)
    files = {"certificate": tmp_path / "server.pem", "key": tmp_path / "server.key"}
    assert isinstance(server_credentials(TlsConfig(**files)), grpc.ServerCredentials)
    files["key"].unlink()
    with pytest.raises(ConfigError, match=r"server\.key"):
        server_credentials(TlsConfig(**files))


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit; the soft one is as it was at the end."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_to_the_hard_one_within_bounds(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    wanted = MAX_LIMIT if hard == resource.RLIM_INFINITY else min(hard, MAX_LIMIT)
    assert raise_descriptor_limit() == wanted
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, hard)


def test_open_descriptors_are_counted(tmp_path: Path) -> None:
    before = count_descriptors()
    with (tmp_path / "file").open("w"):
        assert count_descriptors() == before + 1


def test_connections_leave_descriptors_for_files_and_scrapers(caplog: pytest.LogCaptureFixture) -> None:
    taken, config = count_descriptors() + RESERVED, ServerConfig(max_actors=50)
    assert dict(server_options(config, descriptors=taken + 100))[MAX_CONNECTIONS_OPTION] == 100
    assert caplog.text == ""
    assert dict(server_options(config, descriptors=taken + 40))[MAX_CONNECTIONS_OPTION] == 40
    assert "only 40 of 100 connections fit" in caplog.text


def test_the_log_warns_once_when_most_descriptors_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    clock, found = Clock(), iter([10, 80, 90, 10, 85])
    watch = DescriptorWatch(100, lambda: next(found), clock)
    for _ in range(5):
        watch.tick()
        watch.tick()
        clock.now += LOOK_SECONDS
    assert [record.args for record in caplog.records] == [(80, 100), (85, 100)]
