"""Who may use an acting service, and how it begins and ends: real sockets, certificates and tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.errors import AddressError, PluginError
from common.wire.channel import open_channel, watch_credentials
from common.wire.pb import acting_pb2 as pb
from common.wire.trust import Trust
from crossborder.inspecting.crossborder_health import check_health
from tests.conftest import PATIENCE, free_port, wait_for
from tests.crossborder.serving.services import Caller, Counting, Service, refusal, with_certificate
from tests.users import as_nobody, needs_root

GOOD, OTHER = "unity-host " + "a" * 20, "godot-host " + "b" * 20


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    return tmp_path / "certs"


@pytest.fixture
def secured(certs: Path) -> Iterator[Service]:
    with Service(**with_certificate(certs, GOOD, OTHER), audit_file=certs / "audit.jsonl") as made:
        yield made


def call(service: Service, certs: Path, token: str) -> Caller:
    """A caller with a token."""
    file = certs / f"{token.split(maxsplit=1)[0]}.token"
    file.write_text(f"{token}\n")
    file.chmod(0o600)
    credentials = watch_credentials(service.places.address, Trust(ca=certs / "ca.pem", token_file=file)).get()
    return Caller(service.places.address, channel=open_channel(service.places.address, credentials))


def test_a_client_with_a_token_is_served_and_one_without_is_not(secured: Service, certs: Path) -> None:
    with call(secured, certs, GOOD) as caller:
        assert caller.open().actions(1) == [1]
    with call(secured, certs, "stranger " + "c" * 20) as stranger:
        for ask in (lambda: stranger.stub.Describe(pb.DescribeRequest()), stranger.open):
            with pytest.raises(grpc.RpcError) as error:
                ask()
            assert refusal(error.value)[0] == "UNAUTHENTICATED"
    wait_for(lambda: '"refused"' in (certs / "audit.jsonl").read_text(), "the refusal is in the audit log")


def test_the_holder_of_another_token_cannot_resume_a_session(secured: Service, certs: Path) -> None:
    with call(secured, certs, GOOD) as owner, call(secured, certs, OTHER) as other:
        stream = owner.open()
        with pytest.raises(grpc.RpcError) as error:
            other.resume(stream.opened.secret)
        assert refusal(error.value)[1] == "session_lost"
        assert stream.actions(1) == [1]


def test_a_revoked_token_ends_its_streams_and_no_others(secured: Service, certs: Path) -> None:
    with call(secured, certs, GOOD) as revoked, call(secured, certs, OTHER) as other:
        stream, kept = revoked.open(), other.open()
        (certs / "clients.tokens").write_text(f"{OTHER}\n")
        with pytest.raises(grpc.RpcError) as error:
            stream.read()
        assert refusal(error.value)[0] == "UNAUTHENTICATED"
        assert kept.actions(1) == [1]


@needs_root
def test_another_user_of_the_host_is_not_served_without_tokens() -> None:
    with Service() as service, Caller(service.places.address) as caller:
        with as_nobody():
            grpc.channel_ready_future(caller.channel).result(PATIENCE)
        with pytest.raises(grpc.RpcError) as error:
            caller.stub.Describe(pb.DescribeRequest())
        assert refusal(error.value)[:2] == ("PERMISSION_DENIED", "other_user")


def test_health_is_told_without_a_token(secured: Service, certs: Path) -> None:
    credentials = grpc.ssl_channel_credentials((certs / "ca.pem").read_bytes())
    with grpc.secure_channel(secured.places.address, credentials) as channel:
        asked = health_pb2.HealthCheckRequest(service="crossborder.v1.ActingService")
        answer = health_pb2_grpc.HealthStub(channel).Check(asked)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_the_health_probe_passes(secured: Service, certs: Path) -> None:
    check_health(secured.places.address, Trust(ca=certs / "ca.pem"), PATIENCE)


def test_a_message_beyond_the_limit_is_refused() -> None:
    with Service(max_message_bytes=1024) as service, Caller(service.places.address) as caller:
        stream = caller.open()
        stream.send(step=pb.LaneSteps(seq=1, observation=bytes(2048)))
        with pytest.raises(grpc.RpcError) as error:
            stream.read()
        assert refusal(error.value)[0] == "RESOURCE_EXHAUSTED"


def test_an_address_that_is_taken_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    with Service(listen=address), pytest.raises(AddressError, match=f"{address}: cannot listen there"):
        Service(listen=address).__enter__()


def test_a_policy_that_fails_ends_the_service_and_its_clients_are_told() -> None:
    class Failing(Counting):
        def sample(self, obs: Any, begins: Any, lanes: Any) -> Any:
            raise ValueError("bad weights")

    with Service(Failing()) as service, Caller(service.places.address) as caller:
        stream = caller.open()
        with pytest.raises(grpc.RpcError) as error:
            stream.actions(1)
        assert refusal(error.value)[1] == "stopping"
        service.stop()
        assert isinstance(service.error, PluginError)
        assert str(service.error) == "the policy failed: ValueError: bad weights"


def test_a_door_whose_packages_are_missing_names_the_extra_that_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "crossborder.serving.websocket_door", None)
    with pytest.raises(PluginError, match=r"websocket: .*; pip install 'crossborder\[serving\]'"):
        Service(websocket="127.0.0.1:0").__enter__()
