from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest

from common.wire.waiting import WaitingBytes
from learner.ingest.server_options import count_descriptors

MOST = 1 << 20
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with which a socket is closed at once, so that its port is free."""


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10.0)
        yield listening


@pytest.fixture
def waiting(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> WaitingBytes:
    """Bounds bytes of this process, which has always more than it may."""
    used = iter([0, *[MOST] * 10])
    monkeypatch.setattr(WaitingBytes, "_own_memory", lambda _: next(used))
    made = WaitingBytes(MOST, "the test's bound")
    made.serve_on(server.getsockname()[1])
    return made


def send(caller: socket.socket, server: socket.socket, n_bytes: int) -> socket.socket:
    """Connect, and hand ``n_bytes`` over to the server; the server's end of the connection."""
    caller.settimeout(10.0)
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    caller.connect(server.getsockname())
    accepted, _ = server.accept()
    accepted.settimeout(10.0)
    for _ in range(n_bytes >> 16):
        left = 1 << 16
        caller.sendall(bytes(left))
        while left:
            left -= len(accepted.recv(left))
    return accepted


def test_messages_of_an_earlier_connection_from_the_same_port_hide_no_bytes(
    server: socket.socket, waiting: WaitingBytes
) -> None:
    with closing(socket.socket()) as caller, closing(send(caller, server, 4 * MOST)):
        host, port = caller.getsockname()
        waiting.connection(f"ipv4:{host}:{port}", "alice", is_named=True).note_read(4 * MOST)
        waiting.tick()
        assert waiting.hung_up == 0, "all of its messages were read"
    with closing(socket.socket()) as caller:
        caller.bind((host, port))
        with closing(send(caller, server, 2 * MOST)):
            waiting.tick()
            assert waiting.hung_up == 1
            assert caller.recv(1) == b"", "the connection has ended"


def test_a_bound_that_is_no_longer_needed_holds_no_file_descriptor() -> None:
    """An acting service begins anew with each run of its learner."""
    before = count_descriptors()
    bounds = [WaitingBytes(1 << 30, "a test") for _ in range(3)]
    assert count_descriptors() == before + 3
    bounds.clear()
    assert count_descriptors() == before
