from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from common.errors import ConfigError
from common.wire.endpoints import Endpoint, find_endpoints, hold_port, split_addresses
from tests.conftest import PATIENCE

HOSTS = {"ranks": ["10.0.0.1", "10.0.0.2"], "one": ["10.0.0.3", "fd00::3"], "sixes": ["fd00::1", "fd00::2"]}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of this test's own, in the place of DNS."""

    def find(host: str, port: int, family: int, type: int) -> list[Any]:
        found = [ip for ip in HOSTS.get(host, []) if (":" in ip) == (family == socket.AF_INET6)]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(family, type, 6, "", (ip, port)) for ip in found]

    monkeypatch.setattr(socket, "getaddrinfo", find)


def test_a_list_of_addresses_is_split() -> None:
    assert split_addresses("a:1, b:2,[::1]:3") == ["a:1", "b:2", "[::1]:3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "found ''"), ("a:1,", "found ''"), ("a:1,b", "found 'b'"), ("a:1,b:1,a:1", "'a:1' twice")],
)
def test_a_list_with_something_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split_addresses(text)


@pytest.mark.usefixtures("names")
def test_a_name_of_several_hosts_is_an_endpoint_for_each_and_certificates_are_checked_for_the_name() -> None:
    assert find_endpoints(["ranks:5"]) == [Endpoint("10.0.0.1:5", "ranks"), Endpoint("10.0.0.2:5", "ranks")]
    assert find_endpoints(["sixes:5"]) == [Endpoint("[fd00::1]:5", "sixes"), Endpoint("[fd00::2]:5", "sixes")]


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize("address", ["one:5", "unknown:5", "10.0.0.1:5", "[fd00::1]:5"])
def test_a_name_of_one_host_and_a_name_without_address_are_left_to_grpc(address: str) -> None:
    assert find_endpoints([address]) == [Endpoint.of(address)]


def is_free(port: int) -> bool:
    """Whether a program that knows nothing of the port could get it."""
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def listen(address: str) -> grpc.Server:
    server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    server.add_insecure_port(address)
    server.start()
    return server


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_server_listens_on_a_port_that_is_held_and_nobody_gets_it_while_it_is_away(host: str) -> None:
    with hold_port(0) as held:
        port = held.getsockname()[1]
        for _ in range(2):
            assert not is_free(port)
            server = listen(f"{host}:{port}")
            with socket.create_connection(("127.0.0.1", port), PATIENCE):
                pass
            with pytest.raises(RuntimeError):
                listen(f"{host}:{port}")
            server.stop(0).wait(PATIENCE)
    assert is_free(port)


def test_a_port_on_which_another_program_listens_cannot_be_held() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="Address already in use"):
        hold_port(other.getsockname()[1])
