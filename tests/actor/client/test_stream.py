from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest

from actor.client.actor_traces import ActorTraces
from actor.client.join_answer import read_join
from actor.client.pusher import UNLIMITED
from actor.client.requests import Requests, WaitingBatch
from actor.client.stream import PushStream
from actor.spool import Spool
from actor.stat import ActorCounters
from common.data import NO_MODEL
from common.errors import RefusedError
from common.wire.channel import push_items
from common.wire.codec import buffer
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import ERROR_KEY
from tests.actor.client.conftest import ScriptedLearner, Serve
from tests.actor.client.test_connector import JOINED, SCHEMA
from tests.conftest import PATIENCE

Open = Callable[..., PushStream]


class HearingLearner(ScriptedLearner):
    """Keeps what it hears; acknowledges all of it, or nothing; may refuse."""

    def __init__(self, *, answers: bool = True, error: str = "") -> None:
        super().__init__(JOINED, [])
        self.heard: list[pb.PushItemsRequest] = []
        self.ended = threading.Event()
        self._answers, self._error = answers, error

    def PushItems(  # noqa: N802
        self, requests: Iterator[pb.PushItemsRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.PushItemsResponse]:
        try:
            for request in requests:
                self.heard.append(request)
                if self._error:
                    context.set_trailing_metadata(((ERROR_KEY, self._error),))
                    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "by script")
                if self._answers:
                    yield pb.PushItemsResponse(acked_seq=request.seq)
        finally:
            self.ended.set()


class Line:
    """A spool and the streams that empty it."""

    def __init__(self, port: int) -> None:
        answer = read_join(JOINED)
        self.spool: Spool[WaitingBatch] = Spool(1 << 30, UNLIMITED)
        self.requests = Requests(answer, ActorCounters(), self.spool, ActorTraces())
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def put(self, n: int) -> None:
        batch = self.requests.make_batch(buffer(SCHEMA, {"n": np.array([n])}, 1), NO_MODEL)
        assert self.spool.put(batch, batch.n_bytes, batch.group_rows, 0)

    def open(self) -> PushStream:
        return PushStream(push_items(self.channel), 5, self.spool, self.requests)


@pytest.fixture
def line(serve: Serve) -> Iterator[Callable[[HearingLearner], Line]]:
    made: list[Line] = []

    def _line(learner: HearingLearner) -> Line:
        made.append(Line(serve(learner)))
        return made[-1]

    yield _line
    for each in made:
        each.channel.close()


MakeLine = Callable[[HearingLearner], Line]


def test_a_stream_begins_with_a_heartbeat_empties_a_closed_spool_and_says_goodbye(line: MakeLine) -> None:
    learner = HearingLearner()
    sender = line(learner)
    for n in range(3):
        sender.put(n)
    sender.spool.close()
    stream, acknowledged = sender.open(), list[int]()
    assert stream.run(lambda response: acknowledged.append(response.acked_seq)) is None
    assert stream.has_left
    assert [request.seq for request in learner.heard] == acknowledged == [0, 1, 2, 3, 0]
    assert [request.report.leaving for request in learner.heard] == [False] * 4 + [True]
    assert {request.incarnation for request in learner.heard} == {5}


def test_a_learner_that_is_silent_for_too_long_is_left(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("actor.client.stream.HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr("actor.client.stream.SILENCE_SECONDS", 0.1)
    learner = HearingLearner(answers=False)
    stream = line(learner).open()
    broken = stream.run(lambda _: None)
    assert broken is not None
    assert broken.startswith("CANCELLED")
    assert "the learner has been silent for 0.1 s" in caplog.text
    assert not stream.has_left


def test_a_stream_that_is_no_longer_the_present_one_sends_nothing_more(line: MakeLine) -> None:
    learner = HearingLearner()
    sender = line(learner)
    stream = sender.open()
    sender.spool.disconnect()
    sender.put(1)
    assert stream.run(lambda _: None) is None
    assert learner.ended.wait(PATIENCE)
    assert all(request.seq == 0 for request in learner.heard)


def test_an_incarnation_that_the_learner_does_not_know_joins_again_and_a_refusal_is_final(line: MakeLine) -> None:
    broken = line(HearingLearner(error="not_joined")).open().run(lambda _: None)
    assert broken == "FAILED_PRECONDITION: by script"
    with pytest.raises(RefusedError, match="by script"):
        line(HearingLearner(error="bad_items")).open().run(lambda _: None)


def test_a_silent_learner_is_left_also_while_rows_keep_coming(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A robot's spool sends without waiting for acknowledgements."""
    monkeypatch.setattr("actor.client.stream.SILENCE_SECONDS", 0.1)
    found, ended = line(HearingLearner(answers=False)), threading.Event()

    def feed() -> None:
        n = 0
        while not ended.wait(0.001):
            found.put(n := n + 1)

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        assert found.open().run(lambda _: None)
    finally:
        ended.set()
        feeding.join(PATIENCE)
    assert "the learner has been silent for 0.1 s" in caplog.text
