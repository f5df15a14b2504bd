from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from common.wire.held_port import hold_port
from tests.conftest import PATIENCE


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
