"""The fork server goes on when a process that asks it, such as a command that a test kills, dies meanwhile."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from tests.conftest import PATIENCE
from tests.fork_server import Forked, ForkServer

REQUEST = {"module": "platform", "arguments": [], "environment": {}, "cwd": "/", "descriptors": [], "is_child": False}


@pytest.fixture(scope="module")
def server() -> ForkServer:
    """One that no other test asks."""
    return ForkServer.begin()


@pytest.mark.parametrize(
    "message", [None, json.dumps(REQUEST).encode()], ids=["before it asks", "before it is answered"]
)
def test_the_fork_server_outlives_a_process_that_dies(
    server: ForkServer, tmp_path: Path, message: bytes | None
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(server.address)
        if message is not None:
            asking.sendall(message)
    next_one = server.start("platform", [], log=tmp_path / "log", cwd=tmp_path, environment={})
    assert next_one.wait(PATIENCE) == 0
    assert (tmp_path / "log").read_text().startswith("Linux")


def test_a_process_has_ended_if_its_number_is_that_of_a_thread_by_now() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    over = threading.Event()
    thread = threading.Thread(target=over.wait, args=(PATIENCE,))
    thread.start()
    with theirs:
        theirs.send(str(thread.native_id).encode())
        process = Forked(ours)
        theirs.send(b"3")
        assert process.poll() == 3
    over.set()
    thread.join(PATIENCE)
