"""Whoever means harm is refused by name or cut off; ingest stays small and serves all others."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.client import ROWS, Client
from common.errors import RefusedError
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import typed_error
from crossborder.inspecting.crossborder_health import check_health
from learner.loop import learner_parts
from tests.conftest import ROOT, most_memory, wait_for
from tests.learner.scrapes import scrape_ingest
from tests.security.conftest import Secured, join
from tests.security.hostile import (
    BOMB,
    DATA,
    PREFACE,
    RESET,
    SECONDS,
    SERVICE,
    Hostile,
    frame,
    join_often,
    message,
    nested,
)
from tests.security.hostile import join as join_request
from tests.security.test_operators import look

MEMORY = 48 << 20
"""Ingest may grow by so much in any of these attacks."""
ACTORS = 8


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Gives callers little time, so that tests need not wait long; for a handshake a busy machine may need a second."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(learner_parts, "MESSAGE_BYTES", 1 << 20)
        made = Secured(tmp_path_factory.mktemp("besieged"), max_actors=ACTORS, lost_seconds=9.0)
    with made.server:
        yield made


@pytest.fixture
def hostile(besieged: Secured) -> Iterator[Hostile]:
    made = Hostile(besieged.address, besieged.certs)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def unharmed(besieged: Secured) -> Iterator[None]:
    """After each attack the same ingest process is there, no larger than it may be, and lets an actor in."""
    before = memory(besieged)
    yield
    join(besieged.address, besieged.trust())
    assert memory(besieged) < before + MEMORY
    assert besieged.server.ingest.restarts == 0


def memory(secured: Secured) -> int:
    return most_memory(secured.server.ingest.pid)


def met(secured: Secured, limit: str) -> float:
    """How often a limit was met."""
    return scrape_ingest(secured.server)[f"over_limit_total[{limit}]"]


def refusal(
    channel: grpc.Channel, method: str, data: bytes, compression: grpc.Compression | None = None
) -> grpc.RpcError:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{SERVICE}/{method}")
    with pytest.raises(grpc.RpcError) as error:
        call(data, timeout=SECONDS, compression=compression)
    return error.value


def silent(hostile: Hostile) -> None:
    assert hostile.tcp().recv(1) == b""


def no_handshake(hostile: Hostile) -> None:
    wire = hostile.tcp()
    wire.sendall(b"\x16\x03\x01")
    assert wire.recv(1) == b""


def no_preface(hostile: Hostile) -> None:
    wire = hostile.tls()
    wire.sendall(PREFACE[:10])
    while wire.recv(1000):
        pass


def no_call(hostile: Hostile) -> None:
    for _ in hostile.http2().frames():
        pass


@pytest.mark.parametrize("attack", [silent, no_handshake, no_preface, no_call])
def test_a_connection_that_comes_to_nothing_is_closed(hostile: Hostile, attack: Callable[[Hostile], None]) -> None:
    attack(hostile)


@pytest.mark.parametrize("method", ["Join", "Check", "GetModel", "PushItems"])
def test_a_call_that_never_finishes_its_first_message_is_ended(
    besieged: Secured, hostile: Hostile, method: str
) -> None:
    before = met(besieged, "handshake_seconds")
    wire = hostile.http2()
    stream = wire.begin(f"{SERVICE}/{method}")
    wire.send(frame(DATA, 0, stream, message(b"slow", announced=1 << 19)))
    wire.await_end(stream)
    assert met(besieged, "handshake_seconds") == before + 1


def test_a_message_that_announces_four_gigabytes_is_refused_unread(hostile: Hostile) -> None:
    wire = hostile.http2()
    stream = wire.begin(f"{SERVICE}/PushItems")
    wire.send(frame(DATA, 0, stream, message(b"huge", announced=(1 << 32) - 1)))
    wire.await_end(stream)


@pytest.mark.parametrize("data", [nested(5000), b"\xff" * 1000, b"\x0a\xff\xff\xff\xff\x0f"])
def test_bytes_that_are_no_message_are_refused(hostile: Hostile, data: bytes) -> None:
    error = refusal(hostile.channel(), "Join", data)
    assert isinstance(typed_error(error), RefusedError)
    assert "expected a message of crossborder, found other bytes" in (error.details() or "")


def test_a_message_that_grpc_itself_has_compressed_is_refused(hostile: Hostile) -> None:
    channel = hostile.channel()
    watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    next(watching)  # With this call, the connection is not idle, however long gzip takes.
    assert refusal(channel, "Check", BOMB, grpc.Compression.Gzip).code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("path", [f"{SERVICE}/PushItems", "/grpc.health.v1.Health/Check"])
def test_connections_that_make_ingest_keep_too_many_unfinished_messages_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(learner_parts, "MESSAGE_BYTES", 1 << 16)  # So 1 MiB may wait.
    bounded = Secured(tmp_path, max_actors=1, lost_seconds=SECONDS)
    with bounded.server, ExitStack() as stack:
        hostile = Hostile(bounded.address, bounded.certs)
        stack.callback(hostile.close)
        wires = [hostile.http2(source=f"127.0.0.{2 + i}") for i in range(30)]
        for wire in wires:
            stream = wire.begin(path)
            wire.send(frame(DATA, 0, stream, message(bytes(16_000), announced=60_000)))
            for _ in range(2):
                wire.send(frame(DATA, 0, stream, bytes(16_000)))
        wait_for(lambda: any(wire.has_ended() for wire in wires), "a connection is ended")
        have_ended = [wire.has_ended() for wire in wires]  # At once: all end when the time for a first message is over.
        join(bounded.address, bounded.trust())
        assert not all(have_ended), "no more than needed"


def test_of_two_thousand_joins_those_beyond_the_limits_are_refused(besieged: Secured, hostile: Hostile) -> None:
    before = met(besieged, "address_joins")
    outcomes = join_often(hostile, 2_000)
    assert outcomes.keys() <= {"OK", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}
    assert outcomes["RESOURCE_EXHAUSTED"] > 1_000
    found = scrape_ingest(besieged.server)
    assert before < found["over_limit_total[address_joins]"] <= before + 2_000
    assert found["actors[away]"] <= ACTORS


def test_calls_beyond_the_limit_of_an_address_are_refused_and_health_is_still_told(
    besieged: Secured, hostile: Hostile
) -> None:
    before = met(besieged, "address_calls")
    for wire in [hostile.http2() for _ in range(4)]:  # All first: a call without a message is soon ended.
        for _ in range(15):
            wire.begin(f"{SERVICE}/PushItems")
    wait_for(lambda: met(besieged, "address_calls") > before, "the limit is met")
    health = health_pb2_grpc.HealthStub(hostile.channel())
    answer = health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    wait_for(lambda: scrape_ingest(besieged.server)["open_calls"] == 0, "those who say nothing are sent away")


def test_more_calls_on_one_connection_than_it_may_have_do_not_reach_ingest(besieged: Secured, hostile: Hostile) -> None:
    wire = hostile.http2()
    streams = [wire.begin(f"{SERVICE}/PushItems") for _ in range(1000)]
    wire.await_end(streams[-1])
    assert scrape_ingest(besieged.server)["open_calls"] <= 16


def test_calls_begun_and_taken_back_two_thousand_times_leave_nothing(besieged: Secured, hostile: Hostile) -> None:
    wire = hostile.http2()
    for _ in range(2_000):
        wire.send(frame(RESET, 0, wire.begin(f"{SERVICE}/Join"), b"\0\0\0\x08"))
    wait_for(lambda: scrape_ingest(besieged.server)["open_calls"] == 0, "all are gone")


def test_connections_beyond_the_limit_are_closed_and_others_come_in_again(tmp_path: Path) -> None:
    made = Secured(tmp_path, max_actors=1)
    with made.server:
        hostile, most = Hostile(made.address, made.certs), 2 * 16
        wires = [hostile.tcp() for _ in range(most + 2)]
        assert [wire.recv(1) for wire in wires[most:]] == [b"", b""]
        hostile.close()
        join(made.address, made.trust())


@contextmanager
def guessing(hostile: Hostile, secured: Secured, per_second: float) -> Iterator[Sequence[float]]:
    """Calls with a wrong token from this address, which honest actors, admins and probes share; each adds its time."""
    over, made = threading.Event(), list[float]()

    def guess() -> None:
        wire = hostile.http2("not-the-right-token-at-all")
        while not over.wait(1 / per_second):
            wire.await_end(wire.call(f"{SERVICE}/Check", message(b"")))
            made.append(time.monotonic())

    before, thread = met(secured, "address_failures"), threading.Thread(target=guess)
    thread.start()
    try:
        wait_for(lambda: met(secured, "address_failures") > before, "the guesses are over the limit")
        yield made
    finally:
        over.set()
        thread.join(SECONDS)


def test_a_flood_of_wrong_tokens_shuts_out_neither_probes_nor_admins_nor_actors_of_its_address(tmp_path: Path) -> None:
    made = Secured(tmp_path)
    with made.server:
        hostile = Hostile(made.address, made.certs)
        actors = pb_grpc.LearnerServiceStub(hostile.channel())
        actors.Join(join_request(7), timeout=SECONDS)
        with guessing(hostile, made, per_second=300.0) as made_guesses:
            for _ in range(5):
                check_health(made.address, made.trust(token_file=None), SECONDS)
                assert look(made, "admin.token").name == "counting"
                assert list(actors.GetModel(pb.GetModelRequest(), timeout=SECONDS))
                join(made.address, made.trust())
        hostile.close()
        answered = scrape_ingest(made.server)["unauthenticated_calls_total"]
        assert answered < len(made_guesses), "those over the limit were not even counted"


def test_streams_of_health_from_many_addresses_keep_no_probe_out(besieged: Secured, hostile: Hostile) -> None:
    before = met(besieged, "health_calls")
    wires = [hostile.http2(source=f"127.0.0.{host}") for host in (2, 3, 4, 5)]
    for wire in wires:
        for _ in range(8):
            wire.call("/grpc.health.v1.Health/Watch", message(b""))
    wait_for(lambda: scrape_ingest(besieged.server)["open_calls"] == 32, "all places are taken")
    for _ in range(3):
        check_health(besieged.address, besieged.trust(token_file=None), SECONDS)
    assert met(besieged, "health_calls") == before + 1, "one stream made room for the probes"


@pytest.mark.parametrize(
    "host", ["x\n12:00:00 ERROR learner: all is lost", "\x1b[2J", "a\u202eb", "x" * 256, "<script>"]
)
def test_a_host_name_that_would_forge_a_log_a_screen_or_a_page_is_refused(
    hostile: Hostile, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = refusal(hostile.channel(), "Join", join_request(7, host).SerializeToString())
    assert "host: expected" in (error.details() or "")
    assert host not in caplog.text


@pytest.mark.parametrize("method", ["../../etc/passwd", "__class__", "Join\0", "Join/../PushItems", "x" * 4000])
def test_a_method_that_is_none_of_ours_is_not_found(hostile: Hostile, method: str) -> None:
    wire = hostile.http2()
    wire.await_end(wire.call(f"{SERVICE}/{method}", message(b"")))


def test_batches_of_strangers_and_of_the_past_change_nothing(besieged: Secured, hostile: Hostile) -> None:
    """Whoever has a token but not an actor's incarnation, 64 random bits that only it and the learner know."""
    stored = besieged.server.run.memory.committed
    forged = [pb.PushItemsRequest(incarnation=i, seq=seq, rows=1) for i in (0, 7, 2**64 - 1) for seq in (1, 2**64 - 1)]
    for request in forged:
        error = refusal(hostile.channel(), "PushItems", request.SerializeToString())
        assert "has not joined" in (error.details() or "")
    assert besieged.server.run.memory.committed == stored


def test_honest_actors_lose_nothing_while_everything_is_attacked(besieged: Secured) -> None:
    stored, rounds = besieged.server.run.memory.committed, 0
    command = [sys.executable, "-m", "tests.security.hostile", besieged.address, str(besieged.certs)]
    with (
        Client(besieged.address, besieged.trust()) as one,
        Client(besieged.address, besieged.trust()) as other,
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as attack,
    ):
        before = met(besieged, "address_joins")
        while met(besieged, "address_joins") < before + 200 or rounds < 20:
            rounds += 1
            for client in (one, other):
                for part in client.parts(64):
                    client.push(part)
        told, _ = attack.communicate(timeout=SECONDS)
    assert json.loads(told)["rounds"] > 0
    assert besieged.server.run.memory.committed == stored + 2 * ROWS * rounds
