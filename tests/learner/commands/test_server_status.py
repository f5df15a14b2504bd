"""``learner-server status`` as a process, against a real learner with actors spoken by hand."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from common.wire.pb import crossborder_pb2 as pb
from learner.loop.server import LearnerServer
from tests.conftest import PATIENCE, ROOT, Command, MakeConfig, kill, python_of, wait_for
from tests.learner.ingest.by_hand import Client, Talk

Start = Callable[..., Command]


@pytest.fixture
def watched(make_config: MakeConfig) -> Iterator[LearnerServer]:
    """Answers admins."""
    with LearnerServer(make_config(server={"grace_seconds": 0.1})) as server:
        yield server


def busy(server: LearnerServer) -> Talk:
    """An actor that has pushed five items and ended an episode; it is online as long as the talk is."""
    client = Client(server)
    client.join()
    talk = Talk(client.stub)
    report = pb.Report(env_steps=6, reconnects=2, episode_returns=[1.5], episode_lengths=[6])
    talk.say(client.batch(1, report=report))
    return talk


def gone(server: LearnerServer) -> None:
    """An actor that has said goodbye."""
    client = Client(server, incarnation=88)
    client.join()
    talk = Talk(client.stub)
    talk.say(client.batch(0, rows=0, payload=b"", report=pb.Report(leaving=True)))
    talk.end()


def test_one_look_as_json_has_every_actor(start: Start, watched: LearnerServer) -> None:
    talk = busy(watched)
    gone(watched)
    status = start(
        "learner-server",
        "status",
        "--learner",
        watched.ingest.address,
        "--json",
        "--interval",
        "0.1",
        "--state",
        "online",
        "left",
    )
    assert status.wait() == 0, status.output()
    found = json.loads(status.output())
    talk.end()
    assert (found["name"], found["inserted"], found["replay_items"], found["return_mean"]) == ("counting", 5, 4, 1.5)
    there, left = found["actors"]
    assert there.pop("silent_seconds") < PATIENCE
    assert there == {
        "actor_id": 0,
        "host": "here",
        "pid": 1,
        "state": "online",
        "items": 5,
        "env_steps": 6,
        "lag_opt_steps": 0,
        "last_return": 1.5,
        "reconnects": 2,
        "items_per_second": 0.0,
        "name": "",
        "version": "",
        "evaluates": False,
    }
    assert (left["state"], left["items"], left["lag_opt_steps"], left["last_return"]) == ("left", 0, None, None)


@pytest.mark.parametrize("how", [["--once"], []], ids=["asked to", "without a terminal"])
def test_the_table_is_printed_once(start: Start, watched: LearnerServer, how: list[str]) -> None:
    talk = busy(watched)
    status = start("learner-server", "status", "--learner", watched.ingest.address, "--interval", "0.1", *how)
    assert status.wait() == 0, status.output()
    talk.end()
    assert "actors: 1 online" in status.output()
    headings, row = (line.split() for line in status.output().splitlines()[-2:])
    assert headings == ["id", "name", "host", "state", "lag", "steps/s", "steps", "seen", "return", "reconnects"]
    assert row[:7] == ["0", "-", "here:1", "online", "0", "0.0", "5"]
    assert row[-2:] == ["1.50", "2"]


def test_a_terminal_shows_it_live_until_ctrl_c(watched: LearnerServer) -> None:
    leader, follower = pty.openpty()
    words = ["status", "--learner", watched.ingest.address, "--interval", "0.1"]
    status = subprocess.Popen([*python_of("learner-server"), *words], cwd=ROOT, stdout=follower, stderr=follower)
    os.close(follower)
    seen = b""

    def shows(what: bytes) -> bool:
        nonlocal seen
        seen += os.read(leader, 65536)
        return what in seen

    try:
        wait_for(lambda: shows(b"no actors"), "an empty table")
        talk = busy(watched)
        wait_for(lambda: shows(b"online"), "the actor")
        kill(watched.ingest.pid)
        wait_for(lambda: shows(b"away: "), "the learner does not answer")
        wait_for(lambda: shows(b"actors: ") and b"away: " not in seen[-2000:], "it answers again")
        status.send_signal(signal.SIGINT)
        assert status.wait(PATIENCE) == 130
        talk.cancel()
    finally:
        status.kill()
        status.wait()
        os.close(leader)


def test_a_learner_that_cannot_be_reached(start: Start) -> None:
    status = start("learner-server", "status", "--learner", "127.0.0.1:1", "--once")
    assert status.wait() == 6
    assert "127.0.0.1:1: UNAVAILABLE" in status.output()
