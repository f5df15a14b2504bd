"""The fork server goes on when a process that asks it, such as a command that a test kills, dies meanwhile."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, kill
from tests.fork_server import Forked, ForkServer

REQUEST = {
    "module": "http.server",  # It runs until it is killed.
    "arguments": ["--bind", "127.0.0.1", "0"],
    "environment": {},
    "cwd": "/",
    "descriptors": [],
    "is_child": False,
    "cores": sorted(os.sched_getaffinity(0)),
}


@pytest.fixture(scope="module")
def server() -> ForkServer:
    """One that no other test asks."""
    return ForkServer.begin()


@pytest.mark.parametrize("moment", ["before it asks", "before it is answered", "before it reads the answer"])
def test_the_fork_server_outlives_a_process_that_dies(server: ForkServer, tmp_path: Path, moment: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(PATIENCE)
        asking.connect(server.address)
        if moment != "before it asks":
            asking.sendall(json.dumps(REQUEST).encode())
        answered = int(asking.recv(64, socket.MSG_PEEK)) if moment == "before it reads the answer" else None
    if answered is not None:
        kill(answered)  # The fork server has nobody to tell of its end.
    next_one = server.start("platform", [], log=tmp_path / "log", cwd=tmp_path, environment={})
    assert next_one.wait(PATIENCE) == 0
    assert (tmp_path / "log").read_text().startswith("Linux")


def test_a_process_that_ends_just_before_a_signal_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Forked, "_is_running", lambda _: True)  # It was, a moment ago.
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.send(str(ended.pid).encode())
        process = Forked(ours)
        process.kill()
        theirs.send(b"3")
        assert process.wait(PATIENCE) == 3


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
