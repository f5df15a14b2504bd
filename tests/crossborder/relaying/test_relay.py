"""Actors and a learner with a relay between them: real servers and sockets."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest

from actor.client.connector import Connector
from actor.client.probe import Probe
from actor.manager import ActorManager
from common.config.server_config import ServerConfig
from common.errors import AuthenticationError, ConfigError, LearnerUnreachableError, RefusedError
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import PROTOCOL_VERSION
from common.wire.trust import Trust
from common.wire.waiting import WaitingBytes
from crossborder.certificates.authority import make_files
from crossborder.relaying import relay as relay_module
from crossborder.relaying.relay import RelaySettings
from learner.loop.server import LearnerServer
from tests.actor.client.conftest import ScriptedLearner, Serve
from tests.conftest import PATIENCE, free_port, wait_for
from tests.crossborder.relaying.relays import relaying
from tests.security.conftest import Secured, join
from tests.security.hostile import DATA, SERVICE, Hostile, frame, message
from tests.users import as_nobody, needs_root

HEALTH = "/grpc.health.v1.Health/Check"


def acting(host: LearnerServer) -> int:
    return int((host.actor_table["env_steps"] > 0).sum())


def test_workers_act_through_a_relay_that_comes_back_and_every_step_is_stored_once(host: LearnerServer) -> None:
    address = f"127.0.0.1:{free_port()}"
    manager = ActorManager(address, 1, lambda _: None, Trust(), PATIENCE)
    with relaying(host.ingest.address, address):
        wait_for(lambda: acting(host) == 1, "it acts")
    before = host.control.batches
    with relaying(host.ingest.address, address):
        wait_for(lambda: host.control.batches > before + 5, "it pushes through the next relay")
        (stat,) = manager.stop_and_join(PATIENCE)
        assert host.run.memory is not None
        assert host.run.memory.steps == stat.env_steps == host.actor_table["env_steps"][0]


def test_answers_of_a_learner_on_another_host_say_so(host: LearnerServer) -> None:
    _, _, port = host.ingest.address.rpartition(":")
    for learner, relayed in ((f"127.0.0.1:{port}", False), (f"0.0.0.0:{port}", True)):  # Linux takes 0.0.0.0 to itself.
        with relaying(learner, trust=Trust(insecure=True)) as address:
            connector = Connector(address, 1, PATIENCE, threading.Event(), Trust())
            assert connector.join().is_own_host != relayed
            connector.close()
            probe = Probe(address, Trust())
            assert probe.ask().found.relayed == relayed
            probe.close()


class UnfinishedAnswers(grpc.GenericRpcHandler):
    """Ends each answer in the head of an unknown field of two bytes, which bytes that a relay appends would become."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        answer = pb.CheckResponse(protocol_version=PROTOCOL_VERSION).SerializeToString() + bytes([0xC2, 0x3E, 2])
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)


def test_a_learners_answer_cannot_swallow_the_flag_of_the_relay() -> None:
    server = grpc.server(ThreadPoolExecutor(1), handlers=[UnfinishedAnswers()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with (
        relaying(f"0.0.0.0:{port}", trust=Trust(insecure=True)) as address,
        closing(Probe(address, Trust())) as probe,
        pytest.raises(RefusedError, match="Check: Error parsing message"),
    ):
        probe.ask()
    server.stop(None).wait()


@needs_root
def test_a_relay_says_so_if_its_learner_on_this_host_is_another_users(serve: Serve) -> None:
    with as_nobody():
        port = serve(ScriptedLearner(pb.JoinResponse(), []))
    with (
        relaying(f"127.0.0.1:{port}", trust=Trust(insecure=True)) as address,
        grpc.insecure_channel(address) as channel,
    ):
        assert pb_grpc.LearnerServiceStub(channel).Join(pb.JoinRequest(), timeout=PATIENCE).relayed


@needs_root
def test_a_relay_without_tls_lends_no_other_user_its_access_to_the_learner(host: LearnerServer) -> None:
    with relaying(host.ingest.address) as address, grpc.insecure_channel(address) as channel:
        with as_nobody():
            grpc.channel_ready_future(channel).result(PATIENCE)
        with pytest.raises(grpc.RpcError) as refused:
            pb_grpc.LearnerServiceStub(channel).Join(pb.JoinRequest(), timeout=PATIENCE)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "expected a caller of the relay's own user or of root" in (refused.value.details() or "")


def test_a_learner_that_is_away_is_unavailable_to_callers() -> None:
    with relaying(f"127.0.0.1:{free_port()}") as address:
        connector = Connector(address, 1, PATIENCE, threading.Event(), Trust())
        with pytest.raises(grpc.RpcError) as refused:
            connector.stub.Join(pb.JoinRequest(), timeout=PATIENCE)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        connector.close()


def test_tls_and_tokens_hold_on_both_sides(tmp_path: Path) -> None:
    secured = Secured(tmp_path)
    with secured.server:
        upstream = Trust.model_validate({"ca": secured.path("ca.pem")})
        files: dict[str, Any] = {
            "certificate": Path(secured.path("server.pem")),
            "key": Path(secured.path("server.key")),
        }
        with relaying(secured.address, trust=upstream, **files) as address:
            run_id = join(address, secured.trust())
            assert run_id == secured.server.run.dir.identity.run_id
            stranger = tmp_path / "stranger.token"
            stranger.write_text("0123456789abcdef0123456789abcdef\n")
            stranger.chmod(0o600)
            with pytest.raises(AuthenticationError):
                join(address, secured.trust(token_file=str(stranger)))
            secured.serve(secured.sign("example.org"))  # The relay's own connection to the learner stays open.
            with pytest.raises(AuthenticationError):
                join(address, secured.trust())


def test_an_actor_waits_for_a_relay_that_does_not_trust_its_learner_and_each_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secured, other = Secured(tmp_path), tmp_path / "other"
    make_files(other, ["gpu-host"], 1, renew=False)
    expected = f"the relay does not reach its learner at {secured.address}: the learner's certificate does not verify: "
    with secured.server, relaying(secured.address, trust=Trust(ca=other / "ca.pem")) as address:
        connector = Connector(address, 1, 0.5, threading.Event(), Trust())
        with closing(connector), pytest.raises(LearnerUnreachableError, match=re.escape(expected)):
            connector.join()
    assert expected in caplog.text


@pytest.fixture(scope="module")
def besieged(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Secured, Callable[[], AbstractContextManager[str]]]]:
    """A learner for all sieges, which none reaches, and a function that starts a relay for it."""
    secured = Secured(tmp_path_factory.mktemp("besieged"))
    files: dict[str, Any] = {"certificate": Path(secured.path("server.pem")), "key": Path(secured.path("server.key"))}
    upstream = Trust.model_validate({"ca": secured.path("ca.pem")})
    with secured.server:
        yield secured, lambda: relaying(secured.address, trust=upstream, **files)


@pytest.mark.parametrize("path", [f"{SERVICE}/Join", f"{SERVICE}/PushItems", HEALTH])
def test_connections_that_make_a_relay_keep_too_many_unfinished_messages_are_ended(
    besieged: tuple[Secured, Callable[[], AbstractContextManager[str]]], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured, relays = besieged
    monkeypatch.setattr(relay_module, "MAX_WAITING_BYTES", 1 << 20)
    used = count(step=1 << 30)  # The relay shares this process with the tests, whose memory says nothing.
    monkeypatch.setattr(WaitingBytes, "_own_memory", lambda _: next(used))
    with relays() as address, closing(Hostile(address, secured.certs)) as hostile:
        wires = [hostile.http2(source=f"127.0.0.{2 + i}") for i in range(40)]
        for wire in wires:
            stream = wire.begin(path)
            wire.send(frame(DATA, 0, stream, message(bytes(16_000), announced=200 << 20)))
            for _ in range(2):
                wire.send(frame(DATA, 0, stream, bytes(16_000)))
        wait_for(lambda: any(wire.has_ended() for wire in wires), "a connection is ended")
        assert join(address, secured.trust()) == secured.server.run.dir.identity.run_id
        assert not all(wire.has_ended() for wire in wires), "no more than needed"


@pytest.mark.parametrize("path", [f"{SERVICE}/Join", f"{SERVICE}/GetModel", HEALTH])
def test_a_call_that_never_finishes_its_message_is_ended_by_a_relay(
    besieged: tuple[Secured, Callable[[], AbstractContextManager[str]]], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured, relays = besieged
    monkeypatch.setattr(relay_module, "MESSAGE_SECONDS", 0.1)
    with relays() as address, closing(Hostile(address, secured.certs)) as hostile:
        wire = hostile.http2()
        stream = wire.begin(path)
        wire.send(frame(DATA, 0, stream, message(b"slow", announced=1 << 19)))
        wire.await_end(stream)


@pytest.mark.parametrize("method", ["Join", "Check", "GetModel", "PushItems"])
def test_a_strangers_call_is_refused_before_its_message_has_come(
    besieged: tuple[Secured, Callable[[], AbstractContextManager[str]]], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured, relays = besieged
    monkeypatch.setattr(relay_module, "MESSAGE_SECONDS", 10 * PATIENCE)
    with relays() as address, closing(Hostile(address, secured.certs)) as hostile:
        wire = hostile.http2(token="0" * 43)
        wire.await_end(wire.begin(f"{SERVICE}/{method}"))


def test_of_too_many_calls_of_strangers_the_oldest_one_ends(
    besieged: tuple[Secured, Callable[[], AbstractContextManager[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    secured, relays = besieged
    monkeypatch.setattr(relay_module, "MESSAGE_SECONDS", 10 * PATIENCE)
    monkeypatch.setattr(relay_module, "MAX_STRANGERS", 4)
    with relays() as address, closing(Hostile(address, secured.certs)) as hostile:
        wire = hostile.http2()
        streams = [wire.begin(HEALTH) for _ in range(5)]
        wire.await_end(streams[0])
        assert join(address, secured.trust()) == secured.server.run.dir.identity.run_id


def test_a_connection_without_a_call_is_ended_by_a_relay(
    besieged: tuple[Secured, Callable[[], AbstractContextManager[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    secured, relays = besieged
    idle = "grpc.max_connection_idle_ms"
    assert dict(relay_module._OPTIONS)[idle] == 1000 * ServerConfig().lost_seconds
    monkeypatch.setattr(relay_module, "_OPTIONS", (*dict(relay_module._OPTIONS, **{idle: 500}).items(),))
    with relays() as address, closing(Hostile(address, secured.certs)) as hostile:
        for _ in hostile.http2().frames():
            """It ends them."""


FILE = Path("file.pem")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"listen": "0.0.0.0:0"}, "--listen 0.0.0.0:0: expected --listen-certificate and --listen-key"),
        ({"listen": "0.0.0.0:0", "certificate": FILE, "key": FILE}, "the relay would let everybody in"),
        ({"certificate": FILE}, "--listen-certificate and --listen-key: expected both or neither"),
        ({"client_ca": FILE}, "--listen-client-ca: expected --listen-certificate"),
        ({"trust": Trust(token_file=FILE)}, "--token-file: expected none"),
    ],
)
def test_settings_that_would_let_in_strangers_or_contradict_each_other_are_refused(
    settings: dict[str, object], told: str
) -> None:
    usual = {"learner": "127.0.0.1:1", "listen": "127.0.0.1:0", "trust": Trust()}
    made = RelaySettings.model_validate({**usual, **settings})
    with pytest.raises(ConfigError, match=told):
        made.check()
