from __future__ import annotations

import os
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest

from actor.client.connector import Connector
from common.errors import ConfigError, CrossborderError, LearnerUnreachableError
from common.wire.channel import TokenPlugin, get_model, name_proxy, open_channel, watch_credentials
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.tls import read_pair
from common.wire.tokens import ACTOR_VARIABLE
from common.wire.trust import Trust
from crossborder.certificates.authority import make_files
from tests.conftest import PATIENCE, ROOT


@pytest.fixture
def certs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a learner on this host, and no token in the environment."""
    for name in (ACTOR_VARIABLE, f"{ACTOR_VARIABLE}_FILE"):
        monkeypatch.delenv(name, raising=False)
    make_files(tmp_path, ["127.0.0.1"], 1, renew=False)
    return tmp_path


def test_a_channel_on_loopback_has_no_credentials() -> None:
    assert watch_credentials("127.0.0.1:1", Trust()).get() is None


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host on which everything is to go through a proxy, and the proxy does not answer."""
    for name in ("grpc_proxy", "https_proxy", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9")


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_is_reached_past_a_proxy(host: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with open_channel(f"{host}:{port}", None) as channel, pytest.raises(grpc.RpcError) as found:
            next(iter(get_model(channel)(pb.GetModelRequest(), timeout=PATIENCE)))
        server.stop(0)
    assert found.value.code() is grpc.StatusCode.UNIMPLEMENTED, "the server has answered: it knows no such method"
    assert name_proxy(f"{host}:{port}") == ""


@pytest.mark.usefixtures("proxy")
def test_a_proxy_in_the_way_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "http_proxy is set" in name_proxy("learner.lab:50051")
    assert "no_proxy=learner.lab" in name_proxy("learner.lab:50051")
    assert "secret" not in name_proxy("learner.lab:50051")
    monkeypatch.setenv("no_proxy", "localhost,.lab")
    assert name_proxy("learner.lab:50051") == ""


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_port_of_metrics_is_told_from_one_of_grpc(certs: Path, is_encrypted: bool) -> None:
    trust = Trust(ca=certs / "ca.pem") if is_encrypted else Trust()
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        if is_encrypted:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certs / "server.pem", certs / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever).start()
        try:
            connector = Connector(f"127.0.0.1:{server.server_port}", 1, 0.5, threading.Event(), trust)
            with (
                closing(connector),
                pytest.raises(CrossborderError, match=r"not gRPC.*the port of --websocket"),
            ):
                connector.join()
        finally:
            server.shutdown()


class Resets(socketserver.BaseRequestHandler):
    """A server that breaks a connection off once the client has spoken, as one does that expects TLS, or none."""

    def handle(self) -> None:
        self.request.recv(1)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # A reset, and no end.
        self.request.close()


@pytest.mark.parametrize(
    ("is_encrypted", "hint"),
    [(False, r"does it expect TLS \(--ca\)"), (True, r"does it speak TLS \(else: --insecure\)")],
)
def test_a_connection_that_is_reset_raises_the_question_of_tls(certs: Path, is_encrypted: bool, hint: str) -> None:
    if is_encrypted and grpc.__version__.startswith("1.73."):
        pytest.skip("gRPC 1.73 does not say that the connection was reset in the handshake")
    trust = Trust(ca=certs / "ca.pem") if is_encrypted else Trust()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Resets) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            connector = Connector(f"127.0.0.1:{server.server_address[1]}", 1, 0.5, threading.Event(), trust)
            with (
                closing(connector),
                pytest.raises(LearnerUnreachableError, match=f"Connection reset by peer.*; {hint}"),
            ):
                connector.join()
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("trust", "message"),
    [
        ({"insecure": True, "ca": "ca.pem"}, "--insecure: expected none of ca beside it"),
        ({"certificate": "c.pem"}, "--certificate and --key: expected both or neither"),
        ({"ca": "no.pem"}, "CA file no.pem: cannot be read"),
        ({"token_file": "no.token"}, "token file no.token: cannot be read"),
        ({"certificate": "no.pem", "key": "no.key"}, "private key no.key: cannot be read"),
        ({"ca": "pyproject.toml"}, "CA file pyproject.toml: expected certificates in PEM"),
    ],
)
def test_contradictions_and_files_of_another_kind_are_refused(
    trust: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError, match=message):
        watch_credentials("gpu-host:1", Trust(**trust))


def test_credentials_are_made_anew_when_a_certificate_changes(certs: Path) -> None:
    ca = certs / "ca.pem"
    watched = watch_credentials("127.0.0.1:1", Trust(ca=ca))
    first = watched.get()
    assert first is not None
    assert watched.get() is first
    os.utime(ca, ns=(0, 0))
    assert watched.get() is not first


def test_every_call_carries_the_token_that_the_file_holds_then(tmp_path: Path) -> None:
    path, found = tmp_path / "token", []
    path.touch(0o600)
    path.write_text("a-token-of-today")
    tokens = Trust(token_file=path).tokens()
    assert tokens is not None
    plugin = TokenPlugin(tokens)
    plugin(None, lambda metadata, error: found.append((metadata, error)))  # type: ignore[arg-type]
    path.write_text("the-token-of-tomorrow")
    plugin(None, lambda metadata, error: found.append((metadata, error)))  # type: ignore[arg-type]
    assert found == [
        ((("authorization", "Bearer a-token-of-today"),), None),
        ((("authorization", "Bearer the-token-of-tomorrow"),), None),
    ]


class OneModel(pb_grpc.LearnerServiceServicer):
    """Answers ``GetModel`` with two messages."""

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> Iterator[pb.GetModelResponse]:  # noqa: N802
        yield pb.GetModelResponse(total_bytes=4, data=b"ab")
        yield pb.GetModelResponse(offset=2, data=b"cd")


def test_models_arrive_as_serialised_messages() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    pb_grpc.add_LearnerServiceServicer_to_server(OneModel(), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open_channel(f"127.0.0.1:{port}", None) as channel:
        messages = list(get_model(channel)(pb.GetModelRequest(), timeout=PATIENCE))
    server.stop(None).wait()
    assert [pb.GetModelResponse.FromString(message).data for message in messages] == [b"ab", b"cd"]


def test_the_certificate_of_a_learner_is_checked_for_the_name_that_was_resolved_to_its_address(tmp_path: Path) -> None:
    make_files(tmp_path, ["ranks.example"], 1, renew=False)
    pair = read_pair(tmp_path / "server.pem", tmp_path / "server.key")
    server = grpc.server(ThreadPoolExecutor(1))
    pb_grpc.add_LearnerServiceServicer_to_server(OneModel(), server)  # type: ignore[abstract]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    credentials = watch_credentials(f"ranks.example:{port}", Trust(ca=tmp_path / "ca.pem")).get()

    def fetch(name: str) -> int:
        with open_channel(f"127.0.0.1:{port}", credentials, name) as channel:
            return len(list(get_model(channel)(pb.GetModelRequest(), timeout=PATIENCE)))

    assert fetch("ranks.example") == 2
    with pytest.raises(grpc.RpcError, match=r"Hostname Verification Check failed|is not in peer certificate"):
        fetch("other.example")
    server.stop(None).wait()
