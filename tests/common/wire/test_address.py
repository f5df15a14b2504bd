from __future__ import annotations

import socket

import pytest

from common.errors import ConfigError
from common.wire.address import is_loopback, split_address


@pytest.mark.parametrize(
    ("address", "parts"),
    [("gpu-host:50051", ("gpu-host", 50051)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:65535", ("::1", 65535))],
)
def test_an_address_is_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address",
    ["", "host", ":1", "host:", "host:http", "host:-1", "host:65536", "host:1.5", "host:²", "::1", "::1:50051"],
)
def test_a_text_of_another_form_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match=rf"expected HOST:PORT or \[IPv6\]:PORT, found '{address}'"):
        split_address(address)


@pytest.mark.parametrize("host", ["gpu..host", ".host", "h" * 64, "\ud800"])
def test_a_name_that_no_host_can_have_is_no_address(host: str) -> None:
    with pytest.raises(UnicodeError):
        socket.getaddrinfo(host, 50051)
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        split_address(f"{host}:50051")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("gpu-host", False),
    ],
)
def test_a_loopback_host_is_reachable_from_this_machine_only(host: str, *, loopback: bool) -> None:
    assert is_loopback(host) is loopback
