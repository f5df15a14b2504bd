"""Questions to a learner that is not joined; ``tests/actor/commands/test_doctor.py`` asks them all of a real one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import grpc
import pytest

from actor.client.probe import Probe, connect, inspect_certificate, resolve
from common.errors import AuthenticationError, LearnerUnreachableError, ProtocolMismatchError, RefusedError
from common.wire.codec import schema_to_pb
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import PROTOCOL_VERSION
from common.wire.trust import Trust
from tests.actor.client.conftest import ScriptedLearner, Serve
from tests.actor.client.test_assembly import DATA, chunks
from tests.actor.client.test_connector import JOINED, SCHEMA
from tests.security.conftest import Secured


class AnsweringLearner(ScriptedLearner):
    """Answers ``Check`` too, and counts the bytes that it is sent."""

    def __init__(self, answers: list[list[pb.GetModelResponse]], protocol_version: int = PROTOCOL_VERSION) -> None:
        super().__init__(JOINED, answers)
        self.n_bytes, self._version = 0, protocol_version

    def Check(self, request: pb.CheckRequest, context: grpc.ServicerContext) -> pb.CheckResponse:  # noqa: N802
        self.n_bytes += len(request.payload)
        return pb.CheckResponse(
            protocol_version=self._version,
            unix_seconds=1003.5,
            actors=2,
            max_actors=5,
            schema=schema_to_pb(SCHEMA),
            config_json="{}",
            limits=JOINED.limits,
        )


@contextmanager
def probing(port: int) -> Iterator[Probe]:
    """A probe whose clock says 1000 as it asks, and 1001 as it is answered."""
    times = iter([1000.0, 1001.0])
    with closing(Probe(f"127.0.0.1:{port}", Trust(), lambda: next(times))) as probe:
        yield probe


def test_an_answer_tells_the_round_trip_and_how_far_the_learners_clock_is_ahead(serve: Serve) -> None:
    with probing(serve(AnsweringLearner([]))) as probe:
        answer = probe.ask()
    assert (answer.round_trip, answer.clock_offset) == (1.0, 3.0)
    found = answer.found
    assert (found.actors, found.max_actors, answer.schema, found.config_json) == (2, 5, SCHEMA, "{}")


def test_a_learner_of_another_protocol_version_is_told_apart(serve: Serve) -> None:
    with (
        probing(serve(AnsweringLearner([], protocol_version=1))) as probe,
        pytest.raises(ProtocolMismatchError, match=f"the learner speaks 1, this host {PROTOCOL_VERSION}"),
    ):
        probe.ask()


def test_a_learner_that_is_not_there_is_unreachable(free_port: int) -> None:
    with probing(free_port) as probe, pytest.raises(LearnerUnreachableError, match="no answer: UNAVAILABLE"):
        probe.ask()


def test_an_upload_fits_the_learners_messages(serve: Serve) -> None:
    learner = AnsweringLearner([])
    with probing(serve(learner)) as probe:
        assert probe.upload(2000) > 0
    assert learner.n_bytes == 8 * 1000


def test_a_download_tells_the_size_of_the_model_and_refuses_an_answer_without_one(serve: Serve) -> None:
    with probing(serve(AnsweringLearner([chunks(), chunks()[1:]]))) as probe:
        assert probe.download()[0].data.tobytes() == DATA
        with pytest.raises(RefusedError, match="expected a chunk at offset 0"):
            probe.download()


def test_a_download_from_a_learner_without_a_model_says_so(serve: Serve) -> None:
    learner = AnsweringLearner([[pb.GetModelResponse(not_modified=True)]])
    with probing(serve(learner)) as probe, pytest.raises(RefusedError, match="the learner has no model yet"):
        probe.download()


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
    monkeypatch.setattr("actor.client.probe.CONNECT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # The kernel takes the connection, and nobody answers.
        port = frozen.getsockname()[1]
        with pytest.raises(LearnerUnreachableError, match=f"port {port} of 127.0.0.1: no answer to the TLS handshake"):
            inspect_certificate("127.0.0.1", port, Trust())


def test_a_certificate_that_the_actor_has_no_authority_for_is_refused(secured: Secured) -> None:
    host, _, port = secured.address.rpartition(":")
    with pytest.raises(AuthenticationError, match="the learner's certificate does not verify"):
        inspect_certificate(host, int(port), Trust())
