from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from common.wire import owners
from common.wire.owners import find_listeners, find_peer_owners, is_own_host, is_strangers_peer
from tests.conftest import wait_for
from tests.users import NOBODY, as_nobody, needs_root


@pytest.fixture(params=["netlink", "tables"], autouse=True)
def told_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux tells whose sockets they are by one of two ways alone."""
    name, missing = {"netlink": ("_TABLES", ()), "tables": ("_SOCK_DIAG", 99)}[request.param]
    monkeypatch.setattr(owners, name, missing)


@contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[int]:
    """The port of a socket that listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.create_server((host, 0), family=family)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("listens", "asked"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        ("0.0.0.0", "127.0.0.1"),
        ("::1", "[::1]"),
        ("::1", "localhost"),
        ("::", "[::1]"),
    ],
)
def test_a_port_of_this_user_on_loopback_is_its_own(listens: str, asked: str) -> None:
    with listening(listens) as port:
        assert is_own_host(f"{asked}:{port}")
    assert not is_own_host(f"{asked}:{port}"), "nobody listens there, so who would answer is not known"
    with pytest.raises(ConnectionResetError, match="has answered, and nobody listens there since"):
        is_own_host(f"{asked}:{port}", listened=True)


def test_an_address_beyond_loopback_is_not_its_own() -> None:
    with listening("0.0.0.0") as port:
        assert not is_own_host(f"0.0.0.0:{port}")
        assert not is_own_host(f"gpu-host:{port}")


def test_a_listener_at_another_loopback_address_says_nothing() -> None:
    with listening("127.0.0.1") as port:
        assert find_listeners(f"127.0.0.2:{port}") == frozenset()


@needs_root
@pytest.mark.parametrize("asked", ["127.0.0.1", "localhost"])
def test_another_users_port_on_loopback_is_not_its_own(asked: str) -> None:
    with as_nobody(), listening() as port:
        assert find_listeners(f"{asked}:{port}") == {NOBODY}
        assert is_own_host(f"{asked}:{port}"), "this process is that user now"
    with as_nobody():
        server = socket.create_server(("127.0.0.1", 0))
    with closing(server):
        assert not is_own_host(f"{asked}:{server.getsockname()[1]}")


@needs_root
def test_roots_port_is_trusted_by_every_user() -> None:
    with listening() as port, as_nobody():
        assert is_own_host(f"127.0.0.1:{port}")


@needs_root
@pytest.mark.parametrize(("listens", "connects"), [("127.0.0.1", "127.0.0.1"), ("::", "::1"), ("::", "127.0.0.1")])
def test_a_connection_is_known_by_the_user_who_opened_it(listens: str, connects: str) -> None:
    is_v6 = ":" in listens
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    server = socket.create_server((listens, 0), family=family, dualstack_ipv6=is_v6)
    port = server.getsockname()[1]
    own = socket.create_connection((connects, port))
    with as_nobody():
        foreign = socket.create_connection((connects, port))
    with closing(server), closing(own), closing(foreign):
        assert not is_strangers_peer(peer_of(own), port)
        assert is_strangers_peer(peer_of(foreign), port)
        assert not is_strangers_peer(peer_of(foreign), port + 1), "its connection leads to another port"


@needs_root
def test_a_stranger_is_known_too_if_its_connection_has_an_address_of_this_host_that_is_not_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # Nothing is sent: it shows the address towards other hosts.
        except OSError:
            pytest.skip("this host has no address but loopback")
        here = asking.getsockname()[0]
    with listening() as port:
        with as_nobody():
            foreign = socket.create_connection(("127.0.0.1", port), source_address=(here, 0))
        with closing(foreign):
            assert peer_of(foreign).startswith(f"ipv4:{here}:")
            assert is_strangers_peer(peer_of(foreign), port)


@needs_root
def test_a_stranger_that_has_closed_its_connection_does_not_pass_for_root() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        with as_nobody():
            foreign = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        peer = peer_of(foreign)
        foreign.sendall(b"an order")
        foreign.close()
        with closing(accepted):
            while accepted.recv(1024):
                pass
            wait_for(lambda: find_peer_owners(peer, port) != {NOBODY}, "Linux has given up the closed socket's user")
            assert is_strangers_peer(peer, port)


def test_a_peer_of_another_host_is_no_user_of_this_one() -> None:
    assert not is_strangers_peer("ipv4:10.0.0.5:50123", 50051)


def peer_of(client: socket.socket) -> str:
    """gRPC's name of the client's end."""
    host, port = client.getsockname()[:2]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
