from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc
import pytest

from common.config.server_config import ServerConfig
from common.data import NO_MODEL, ModelVersion
from common.errors import CrossborderError, ProtocolMismatchError, RefusedError, SchemaMismatchError
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import (
    CLIENT_OPTIONS,
    ERROR_KEY,
    NotJoinedError,
    StoppingError,
    describe,
    typed_error,
    version_from_pb,
    version_to_pb,
)
from learner.ingest.server_options import server_options
from tests.conftest import PATIENCE


class Refusing(pb_grpc.LearnerServiceServicer):
    """Refuses every ``Join`` with the status and the error key that its ``host`` names."""

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
        code, _, key = request.host.partition(" ")
        context.set_trailing_metadata(((ERROR_KEY, key),) if key else ())
        context.abort(grpc.StatusCode[code], "the details")


def serve(address: str, max_message_bytes: int = 1 << 20) -> tuple[grpc.Server, int]:
    server = grpc.server(ThreadPoolExecutor(1), options=server_options(ServerConfig(), max_message_bytes))
    pb_grpc.add_LearnerServiceServicer_to_server(Refusing(), server)  # type: ignore[abstract]
    port = server.add_insecure_port(address)
    server.start()
    return server, port


@pytest.fixture
def port() -> Iterator[int]:
    server, port = serve("127.0.0.1:0", max_message_bytes=1024)
    yield port
    server.stop(None).wait()


def refusal(port: int, host: str) -> Any:
    """The error of a real call that was refused as ``host`` says."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=CLIENT_OPTIONS) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            pb_grpc.LearnerServiceStub(channel).Join(pb.JoinRequest(host=host), timeout=10)
        return caught.value


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("FAILED_PRECONDITION protocol_mismatch", ProtocolMismatchError),
        ("FAILED_PRECONDITION not_joined", NotJoinedError),
        ("FAILED_PRECONDITION schema_mismatch", SchemaMismatchError),
        ("INVALID_ARGUMENT bad_items", RefusedError),
        ("UNAVAILABLE stopping", StoppingError),
        ("INVALID_ARGUMENT", RefusedError),
        ("UNIMPLEMENTED", RefusedError),
        ("PERMISSION_DENIED", RefusedError),
        ("FAILED_PRECONDITION a_key_of_tomorrow", RefusedError),
    ],
)
def test_a_permanent_refusal_becomes_its_error(port: int, host: str, kind: type[CrossborderError]) -> None:
    found = typed_error(refusal(port, host))
    assert type(found) is kind
    assert str(found) == "the details"


@pytest.mark.parametrize(
    "host",
    [
        "UNAVAILABLE",
        "DEADLINE_EXCEEDED",
        "RESOURCE_EXHAUSTED too_many_actors",
        "RESOURCE_EXHAUSTED over_limit",
        "UNAVAILABLE some_proxy",
    ],
)
def test_a_refusal_that_may_pass_is_tried_again(port: int, host: str) -> None:
    assert typed_error(refusal(port, host)) is None


def test_nobody_listening_is_tried_again() -> None:
    server, port = serve("127.0.0.1:0")
    server.stop(None).wait()
    error = refusal(port, "UNAVAILABLE")
    assert typed_error(error) is None
    assert describe(error).startswith("UNAVAILABLE: ")
    assert "the details" not in describe(error)


class FailedCall(grpc.RpcError):
    """An error of gRPC's own code, which no server has sent."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAUTHENTICATED

    def details(self) -> str:
        return "Hostname Verification Check failed.\x1b[2J"

    def trailing_metadata(self) -> tuple[()]:
        return ()


def test_a_token_that_grpc_does_not_send_is_not_called_refused(port: int) -> None:
    assert str(typed_error(FailedCall())) == (
        "the learner's certificate is not for this host name: Hostname Verification Check failed"
    )
    assert str(typed_error(refusal(port, "UNAUTHENTICATED"))) == "the token was not sent: the details"


def test_a_failed_call_is_described_in_one_line(port: int) -> None:
    assert describe(refusal(port, "NOT_FOUND")) == "NOT_FOUND: the details"


def test_a_message_above_the_limit_never_reaches_the_service(port: int) -> None:
    error = refusal(port, "NOT_FOUND " + "x" * 2000)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_port_that_is_taken_is_an_error(port: int) -> None:
    with pytest.raises(RuntimeError, match="bind"):
        serve(f"127.0.0.1:{port}")


def test_clients_ping_no_more_often_than_the_server_allows() -> None:
    client, server = dict(CLIENT_OPTIONS), dict(server_options(ServerConfig()))
    assert client["grpc.keepalive_time_ms"] >= server["grpc.http2.min_recv_ping_interval_without_data_ms"]
    assert server["grpc.keepalive_permit_without_calls"] == client["grpc.keepalive_permit_without_calls"] == 1


@pytest.mark.parametrize("version", [NO_MODEL, ModelVersion(1, 0), ModelVersion(3, 2**40)])
def test_a_version_survives_the_wire(version: ModelVersion) -> None:
    assert version_from_pb(pb.ModelVersion.FromString(version_to_pb(version).SerializeToString())) == version


@pytest.fixture
def slow_link(port: int) -> Iterator[int]:
    """The port of a link that takes 1.2 s to pass on what the server says first, as three round trips of 0.4 s."""
    with closing(socket.create_server(("127.0.0.1", 0))) as entrance:

        def carry() -> None:
            near, _ = entrance.accept()
            with closing(near), closing(socket.create_connection(("127.0.0.1", port))) as far:
                back = threading.Thread(target=pass_on, args=(far, near, 1.2))
                back.start()
                pass_on(near, far, 0.0)
                back.join(PATIENCE)

        thread = threading.Thread(target=carry)
        thread.start()
        yield entrance.getsockname()[1]
        thread.join(PATIENCE)


def pass_on(source: socket.socket, target: socket.socket, delay: float) -> None:
    while data := source.recv(1 << 16):
        time.sleep(delay)  # The link itself.
        delay = 0.0
        target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def test_a_client_connects_over_a_link_with_a_long_round_trip(slow_link: int) -> None:
    assert refusal(slow_link, "UNAVAILABLE stopping").details() == "the details"
