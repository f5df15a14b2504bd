"""What a learner's address leads to, without gRPC; with certificates also ``tests/security/test_operators.py``."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from actor.client.handshake import connect, inspect_certificate, resolve
from common.errors import AuthenticationError, LearnerUnreachableError
from common.wire.trust import Trust
from tests.security.conftest import Secured


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    with made.server:
        yield made


def test_a_name_leads_to_its_addresses_each_once() -> None:
    assert resolve("127.0.0.1", 80) == ["127.0.0.1"]
    found = resolve("localhost", 80)
    assert "127.0.0.1" in found or "::1" in found
    assert len(found) == len(set(found))


def test_a_name_without_an_address_is_unreachable() -> None:
    with pytest.raises(LearnerUnreachableError, match=r"'no-such-host\.invalid' has no address"):
        resolve("no-such-host.invalid", 80)


def test_a_port_where_nobody_listens_is_unreachable(free_port: int) -> None:
    with pytest.raises(LearnerUnreachableError, match=f"port {free_port} of 127.0.0.1: Connection refused"):
        connect("127.0.0.1", free_port)


def test_a_certificate_is_described_by_its_names_its_issuer_and_its_end(secured: Secured) -> None:
    host, _, port = secured.address.rpartition(":")
    found = inspect_certificate(host, int(port), secured.trust())
    assert found.startswith("for gpu-host, localhost, 127.0.0.1, 0:0:0:0:0:0:0:1; by crossborder")
    assert found.endswith(" days from now")


def test_a_port_where_nobody_listens_is_unreachable_over_tls_too(free_port: int) -> None:
    with pytest.raises(LearnerUnreachableError, match="Connection refused"):
        inspect_certificate("127.0.0.1", free_port, Trust())


def test_a_learner_that_is_frozen_is_unreachable_and_not_said_to_refuse_the_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actor.client.handshake.CONNECT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # The kernel takes the connection, and nobody answers.
        port = frozen.getsockname()[1]
        with pytest.raises(LearnerUnreachableError, match=f"port {port} of 127.0.0.1: no answer to the TLS handshake"):
            inspect_certificate("127.0.0.1", port, Trust())


def test_a_certificate_that_the_actor_has_no_authority_for_is_refused(secured: Secured) -> None:
    host, _, port = secured.address.rpartition(":")
    with pytest.raises(AuthenticationError, match="the learner's certificate does not verify"):
        inspect_certificate(host, int(port), Trust())
