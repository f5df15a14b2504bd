"""The client's end of a session, at real services and at odd ones."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from actor.client import acting_session
from actor.client.acting_session import ActingSession, NoAnswerError, SessionEndedError
from common.errors import LearnerUnreachableError, ProtocolMismatchError, RefusedError
from common.wire.acting_payloads import Description
from common.wire.pb import acting_pb2 as pb
from common.wire.pb import acting_pb2_grpc as pb_grpc
from common.wire.rpc import StoppingError
from common.wire.trust import ServiceTrust
from crossborder.certificates.authority import load_authority, make_files, sign
from tests.cable import Cable
from tests.conftest import PATIENCE, wait_for
from tests.crossborder.serving.services import SPEC, Service
from tests.security.conftest import replace

Answers = Callable[[Iterator[pb.ActRequest]], Iterator[pb.ActResponse]]


def session_at(address: str, patience: float = PATIENCE, **trust: Any) -> ActingSession:
    return ActingSession(address, ServiceTrust(**trust), patience, threading.Event())


def step(k: int = 1, **fields: Any) -> pb.LaneSteps:
    return pb.LaneSteps(observation=Description(SPEC).write_observation(np.zeros((k, 2), np.float32), k), **fields)


def action_of(answer: pb.LaneActions) -> int:
    return int(np.frombuffer(answer.action, np.int64)[0])


class Odd(pb_grpc.ActingServiceServicer):
    """A service that answers as a test says."""

    def __init__(self, answers: Answers, version: int) -> None:
        self._answers, self._version = answers, version

    def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:  # noqa: N802
        return pb.DescribeResponse(protocol_version=self._version)

    def Act(self, request_iterator: Iterator[pb.ActRequest], context: Any) -> Iterator[pb.ActResponse]:  # noqa: N802
        yield from self._answers(request_iterator)


@contextmanager
def odd(answers: Answers, version: int = 1) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    pb_grpc.add_ActingServiceServicer_to_server(Odd(answers, version), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def opened(secret: str = "s") -> pb.ActResponse:  # noqa: S107 - of a test
    return pb.ActResponse(opened=pb.SessionOpened(secret=secret, lanes=1))


def test_an_answer_to_another_step_is_refused() -> None:
    def answers(requests: Iterator[pb.ActRequest]) -> Iterator[pb.ActResponse]:
        next(requests)
        yield opened()
        next(requests)
        yield pb.ActResponse(action=pb.LaneActions(seq=7))

    with odd(answers) as address:
        session = session_at(address)
        session.open(1)
        session.ask(step())
        with pytest.raises(RefusedError, match="expected the answer to step 1, found 7"):
            session.answer()
        session.close(None, PATIENCE)


def test_a_service_that_answers_without_end_fills_no_memory_and_is_left_in_order() -> None:
    sent = itertools.count()

    def answers(requests: Iterator[pb.ActRequest]) -> Iterator[pb.ActResponse]:
        next(requests)
        yield opened()
        while True:
            yield pb.ActResponse(action=pb.LaneActions(seq=next(sent) + 1, action=bytes(1 << 20)))

    with odd(answers) as address:
        session = session_at(address)
        session.open(1)
        session.ask(step())
        assert session.answer().seq == 1
        assert session.close(step(reward=[1.0]), 0.5) == 1, "it never ends the stream in order"
    assert next(sent) < 1000


def test_a_service_of_another_version_is_named() -> None:
    with odd(lambda _: iter(()), version=2) as address:
        session = session_at(address)
        with pytest.raises(ProtocolMismatchError, match=r"expected version 1 of acting\.proto, found 2"):
            session.describe()
        session.close(None, 0)


def test_the_port_of_websocket_is_told_from_that_of_grpc() -> None:
    with Service(websocket="127.0.0.1:0") as service:
        session = session_at(str(service.places.websocket), patience=0.5)
        with pytest.raises(LearnerUnreachableError, match="and not gRPC; is this the port of --websocket"):
            session.describe()
        session.close(None, 0)


def test_a_service_that_opens_no_session_is_given_up_after_the_patience() -> None:
    def answers(requests: Iterator[pb.ActRequest]) -> Iterator[pb.ActResponse]:
        next(requests)
        yield pb.ActResponse(action=pb.LaneActions(seq=1))

    with odd(answers) as address:
        session = session_at(address, patience=0.5)
        with pytest.raises(LearnerUnreachableError, match=r"no acting service for 0\.5 s: no session was opened"):
            session.open(1)
        session.close(None, 0)


def test_an_answer_that_comes_too_late_is_still_the_answer() -> None:
    may_answer = threading.Event()

    def answers(requests: Iterator[pb.ActRequest]) -> Iterator[pb.ActResponse]:
        next(requests)
        yield opened()
        next(requests)
        may_answer.wait(PATIENCE)
        yield pb.ActResponse(action=pb.LaneActions(seq=1))

    with odd(answers) as address:
        session = session_at(address)
        session.open(1)
        session.ask(step())
        with pytest.raises(NoAnswerError):
            session.answer(0.1)
        assert session.waits
        may_answer.set()
        assert session.answer(PATIENCE).seq == 1
        session.close(None, 0)


def test_a_service_that_is_late_to_resume_a_session_is_late_with_its_action_and_not_asked_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A robot makes a safe stop in time, whatever the service does not answer."""
    monkeypatch.setattr(acting_session, "QUESTION_SECONDS", PATIENCE)
    may_resume, streams = threading.Event(), itertools.count(1)

    def answers(requests: Iterator[pb.ActRequest]) -> Iterator[pb.ActResponse]:
        next(requests)
        if next(streams) > 1:
            assert may_resume.wait(PATIENCE)
        yield opened()
        if may_resume.is_set():
            yield pb.ActResponse(action=pb.LaneActions(seq=next(requests).step.seq))

    with odd(answers) as address:
        session = session_at(address)
        session.open(1)
        session.ask(step())
        for _ in range(2):
            with pytest.raises(NoAnswerError):
                session.answer(1.0)
        may_resume.set()
        assert session.answer(PATIENCE).seq == 1
        assert next(streams) == 3
        session.close(None, 0)


def test_steps_without_an_answer_are_sent_again_and_count_once() -> None:
    with Service() as service, Cable(service.places.address) as cable:
        session = session_at(cable.address)
        session.open(2)
        for seq in range(1, 30):
            session.ask(step(2))
            if seq % 3 == 0:
                cable.pull()
            answer = session.answer()
            assert (answer.seq, action_of(answer)) == (seq, seq)
        session.close(None, PATIENCE)


def test_a_service_that_answers_nothing_any_more_is_left_for_another_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """TCP still acknowledges there, as where a process is stopped, or a tunnel stays open."""
    monkeypatch.setattr(acting_session, "QUIET_SECONDS", 0.5)
    monkeypatch.setattr(acting_session, "QUESTION_SECONDS", 2.0)
    caplog.set_level("INFO")
    with Service() as service, Cable(service.places.address) as cable:
        session = session_at(cable.address)
        session.open(2)
        for seq in (1, 2, 3):
            session.ask(step(2))
            if seq == 2:
                cable.freeze()
            answer = session.answer()
            assert (answer.seq, action_of(answer)) == (seq, seq)
        session.close(None, PATIENCE)
    assert "the service answers nothing any more" in caplog.text
    assert cable.connections > 1


def test_a_service_that_answers_other_questions_may_be_late_with_an_action_for_as_long_as_it_wants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A learner may hold it back."""
    monkeypatch.setattr(acting_session, "QUIET_SECONDS", 0.1)
    streams, was_asked = itertools.count(1), threading.Semaphore(0)
    describe = Odd.Describe

    def count(odd_service: Odd, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        was_asked.release()
        return describe(odd_service, request, context)

    monkeypatch.setattr(Odd, "Describe", count)

    def answers(requests: Iterator[pb.ActRequest]) -> Iterator[pb.ActResponse]:
        next(requests)
        next(streams)
        yield opened()
        for _ in range(3):
            assert was_asked.acquire(timeout=PATIENCE)
        yield pb.ActResponse(action=pb.LaneActions(seq=next(requests).step.seq))

    with odd(answers) as address:
        session = session_at(address)
        session.open(1)
        session.ask(step())
        assert session.answer().seq == 1
        assert next(streams) == 2
        session.close(None, 0)


def test_a_session_that_is_told_to_stop_and_then_closed_tells_the_steps_without_an_answer_on_another_connection() -> (
    None
):
    stopped = threading.Event()
    with Service() as service, Cable(service.places.address) as cable:
        session = ActingSession(cable.address, ServiceTrust(), PATIENCE, stopped)
        session.open(2)
        session.ask(step(2))
        session.answer()
        cable.cut()
        session.ask(step(2, reward=[1.0, 2.0]))
        stop_later(lambda: session._away is not None, stopped, session)
        with pytest.raises(StoppingError):
            session.answer()
        cable.mend()
        assert session.close(None, PATIENCE) == 0
    assert len(service.player.batches) == 2


def test_the_last_step_is_told_on_another_connection_if_that_of_before_has_broken() -> None:
    with Service() as service, Cable(service.places.address) as cable:
        session = session_at(cable.address)
        session.open(1)
        session.ask(step())
        session.answer()
        cable.pull()
        assert session.close(step(reward=[1.0]), PATIENCE) == 0
    assert len(service.player.batches) == 2


def test_a_session_that_cannot_be_resumed_says_at_its_end_how_many_steps_are_given_up() -> None:
    with Service() as service, Cable(service.places.address) as cable:
        session = session_at(cable.address)
        session.open(3)
        session.ask(step(3))
        session.answer()
        cable.cut()
        session.ask(step(2, lanes=[0, 2], reward=[1.0, 2.0]))
        session.ask(step(1, lanes=[1], reward=[1.0], terminated=[True]))
        assert session.close(None, 0.5) == 3
        assert session.close(None, PATIENCE) == 0, "it is closed already"


def test_a_session_without_a_step_is_not_resumed_to_be_closed() -> None:
    with Service() as service, Cable(service.places.address) as cable:
        session = session_at(cable.address)
        session.open(1)
        session.ask(step())
        cable.cut()
        with pytest.raises(NoAnswerError):
            session.answer(0.5)
        n_connections = cable.connections
        cable.mend()
        assert session.close(None, PATIENCE) == 0
        assert cable.connections == n_connections


def stop_later(when: Callable[[], object], stopped: threading.Event, session: ActingSession) -> None:
    """Tell a session to stop from another thread, once ``when`` is true."""

    def stop() -> None:
        wait_for(when, "the time to stop")
        stopped.set()
        session.wake()

    threading.Thread(target=stop).start()


def test_whoever_is_woken_while_it_waits_is_told_to_stop() -> None:
    waits = threading.Event()

    def answers(requests: Iterator[pb.ActRequest]) -> Iterator[pb.ActResponse]:
        next(requests)
        yield opened()
        next(requests)
        waits.set()
        next(requests)  # The client closes the session.

    stopped = threading.Event()
    with odd(answers) as address:
        session = ActingSession(address, ServiceTrust(), PATIENCE, stopped)
        session.open(1)
        session.ask(step())

        stop_later(waits.is_set, stopped, session)
        with pytest.raises(StoppingError, match="told to stop while waiting for an action"):
            session.answer()
        session.close(None, PATIENCE)


def test_a_session_that_opens_ends_at_once_when_it_is_told_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting_session, "QUESTION_SECONDS", 1e6)
    opens, ends, stopped = threading.Event(), threading.Event(), threading.Event()

    def answers(requests: Iterator[pb.ActRequest]) -> Iterator[pb.ActResponse]:
        next(requests)
        opens.set()
        ends.wait(PATIENCE)
        yield from ()

    with odd(answers) as address:
        session = ActingSession(address, ServiceTrust(), PATIENCE, stopped)
        stop_later(opens.is_set, stopped, session)
        with pytest.raises(StoppingError, match="told to stop"):
            session.open(1)
        ends.set()
        session.close(None, PATIENCE)


def test_the_session_of_a_service_that_was_started_anew_has_ended_and_another_one_can_be_opened() -> None:
    with Service() as first:
        session = session_at(first.places.address)
        session.open(1)
    with Service(listen=first.places.address):
        session.ask(step())
        with pytest.raises(SessionEndedError):
            session.answer()
        session.open(1)
        session.ask(step())
        assert session.answer().seq == 1
        session.close(None, PATIENCE)


def test_a_session_goes_on_with_a_token_that_replaces_the_one_before(tmp_path: Path) -> None:
    certs, mine = tmp_path / "certs", tmp_path / "mine"
    make_files(certs, ["127.0.0.1"], 1, renew=False)
    tokens = certs / "clients.tokens"
    for file in (tokens, mine):
        file.write_text("robot " + "a" * 20 + "\n")
    tls = {"certificate": certs / "server.pem", "key": certs / "server.key"}
    with Service(tls=tls, token_file=tokens) as service:
        session = session_at(service.places.address, ca=certs / "ca.pem", token_file=mine)
        session.open(1)
        session.ask(step())
        assert session.answer().seq == 1
        for file in (mine, tokens):
            file.write_text("robot " + "b" * 20 + "\n")
        stream = session._stream
        assert stream is not None
        wait_for(stream._has_ended.is_set, "the service ends the connection")
        session.ask(step())
        assert session.answer().seq == 2
        session.close(None, PATIENCE)


def test_a_session_goes_on_once_the_service_has_a_certificate_again_that_can_be_trusted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certs = tmp_path / "certs"
    make_files(certs, ["127.0.0.1"], 1, renew=False)
    before = {name: (certs / name).read_bytes() for name in ("server.key", "server.pem")}
    wrong = sign(load_authority(certs), "another", ["example.org"])
    tls = {"certificate": certs / "server.pem", "key": certs / "server.key"}
    with Service(tls=tls) as service:
        session = session_at(service.places.address, ca=certs / "ca.pem")
        session.describe()
        session.open(1)
        replace(certs / "server.key", wrong.key_pem)
        replace(certs / "server.pem", wrong.certificate_pem)
        session._reopen_channel()  # As if the connection had broken.
        session.ask(step())

        def mend() -> None:
            wait_for(lambda: "certificate is not for this host name" in caplog.text, "the session waits")
            for name, content in before.items():
                replace(certs / name, content)

        with ThreadPoolExecutor(1) as pool:
            mended = pool.submit(mend)
            assert session.answer().seq == 1
            mended.result()
        session.close(None, PATIENCE)
