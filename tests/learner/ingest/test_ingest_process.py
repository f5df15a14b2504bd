"""The ingest process as its trainer sees it: started, killed, started again, ended."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from pathlib import Path

import grpc
import pytest

from common.errors import RunDirectoryError
from common.wire.address import split_address
from common.wire.pb import crossborder_pb2 as pb
from learner.loop.server import LearnerServer
from tests.conftest import PATIENCE, MakeConfig, kill, wait_for
from tests.learner.ingest.by_hand import SECONDS, Client, Talk


def test_after_ingest_is_killed_every_acknowledged_batch_is_stored_once(client: Client) -> None:
    client.join()
    talk = Talk(client.stub)
    talk.say(client.batch(1, start=0))
    ingest = client.server.ingest
    kill(ingest.pid)
    with pytest.raises(grpc.RpcError):
        talk.hear()
    wait_for(lambda: ingest.restarts == 1, "the restart")
    assert client.join().last_seq == 1
    talk = Talk(client.stub)
    assert talk.say(client.batch(1, start=0)).acked_seq == 1
    assert talk.say(client.batch(2, start=5)).acked_seq == 2
    assert client.stored() == list(range(10))


@pytest.mark.parametrize("is_copied", [False, True], ids=["nothing there", "a copy there"])
def test_ingest_that_is_killed_while_the_directory_of_its_run_is_away_waits_for_it(
    client: Client, caplog: pytest.LogCaptureFixture, is_copied: bool
) -> None:
    client.join()
    Talk(client.stub).say(client.batch(1, start=0))
    ingest, path = client.server.ingest, client.server.run.dir.path
    away = path.with_name("away")
    path.rename(away)
    if is_copied:
        shutil.copytree(away, path)
    before = read_files(path)
    kill(ingest.pid)
    wait_for(lambda: "ingest is started again once its files can be used" in caplog.text, "that ingest waits")
    assert "expected the directory that this learner has locked, found none or another" in caplog.text
    assert read_files(path) == before
    shutil.rmtree(path, ignore_errors=True)
    away.rename(path)
    wait_for(lambda: ingest.restarts == 1, "the restart")
    assert client.join().last_seq == 1
    assert Talk(client.stub).say(client.batch(2, start=5)).acked_seq == 2
    assert client.stored() == list(range(10))


def read_files(path: Path) -> dict[str, bytes]:
    """The contents of all files below a directory, by path; none without the directory."""
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_after_the_process_that_forks_ingest_is_killed_another_one_forks_it(client: Client) -> None:
    client.join()
    talk = Talk(client.stub)
    talk.say(client.batch(1, start=0))
    ingest, forks = client.server.ingest, client.server._coming_ingest.server
    first = forks.pid
    assert first is not None
    kill(first)
    wait_for(lambda: ingest.restarts == 1, "the restart")
    assert forks.pid not in (None, first)
    assert client.join().last_seq == 1
    assert Talk(client.stub).say(client.batch(2, start=5)).acked_seq == 2
    assert client.stored() == list(range(10))


def test_nobody_gets_the_port_while_ingest_is_away(client: Client) -> None:
    ingest = client.server.ingest
    ingest._supervisor.stop_restarting()
    kill(ingest.pid)
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(split_address(ingest.address))


def test_the_endpoints_name_the_port_of_the_metrics_that_a_restarted_process_has_taken(client: Client) -> None:
    server = client.server
    endpoints = server.run.dir.path / "endpoints.json"
    assert json.loads(endpoints.read_text())["ingest_metrics_port"] == server.ingest.metrics_port
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server.ingest._boot["metrics_ports"][0] = taken.getsockname()[1]  # As if the first process had had it.
        kill(server.ingest.pid)
        wait_for(lambda: server.ingest.restarts == 1, "the restart")
        port = server.ingest.metrics_port
        assert port not in (None, 0, taken.getsockname()[1])
        assert json.loads(endpoints.read_text())["ingest_metrics_port"] == port


def test_a_file_that_ingest_cannot_write_when_it_is_started_again_ends_the_run_with_the_reason(client: Client) -> None:
    server = client.server
    (server.run.dir.shared / "limits.json").unlink()
    (server.run.dir.shared / ".limits.json.part").mkdir()
    kill(server.ingest.pid)
    wait_for(lambda: server.learner.life.failure is not None, "the failure")
    assert isinstance(server.learner.life.failure, RunDirectoryError)
    assert str(server.learner.life.failure) == f"{server.run.dir.shared}: cannot be written: Is a directory"


def test_actors_can_hand_over_when_ingest_dies_while_the_learner_stops(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(server={"grace_seconds": SECONDS})) as server:
        client = Client(server)
        client.join()
        Talk(client.stub).say(client.batch(1))
        kill(server.ingest.pid)
        server.ingest.announce_stop()
        answers: list[pb.JoinResponse] = []

        def is_back() -> bool:
            with contextlib.suppress(grpc.RpcError):
                answers.append(client.join())
            return bool(answers)

        wait_for(is_back, "ingest is started again")
        talk = Talk(client.stub)
        assert talk.say(client.batch(2, start=5)).stop
        talk.say(client.batch(0, rows=0, payload=b"", report=pb.Report(leaving=True)))
        talk.end()
        wait_for(lambda: server.ingest.exit_code() == 0, "it ends in order")
        assert server.ingest.restarts == 1, "it is not started once more"
        assert client.stored() == list(range(10))


def test_an_actor_that_has_just_joined_hears_of_the_end(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(server={"grace_seconds": SECONDS})) as server:
        client = Client(server)
        client.join()
        server.ingest.announce_stop()
        server.ingest._supervisor.wait(0.5)  # As long as an actor may take to begin its stream.
        talk = Talk(client.stub)
        assert talk.say(client.batch(0, rows=0, payload=b"")).stop
        talk.say(client.batch(0, rows=0, payload=b"", report=pb.Report(leaving=True)))
        talk.end()
        wait_for(lambda: server.ingest.exit_code() == 0, "it ends in order")


def test_ingest_shows_life_while_it_waits_for_actors_that_are_slow_to_leave(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(server={"grace_seconds": 6.0, "hung_seconds": 3.0})) as server:
        client = Client(server)
        client.join()
        Talk(client.stub).say(client.batch(1))
        server.ingest.announce_stop()
        server.ingest._supervisor.wait(PATIENCE)
        assert (server.ingest.exit_code(), server.ingest.restarts) == (0, 0)
