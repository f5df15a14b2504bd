"""The pusher against a learner that breaks the connection by script, over real gRPC."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

import grpc
import numpy as np
import pytest

from actor.client.actor_traces import ActorTraces
from actor.client.connector import Connector
from actor.client.fetcher import ModelFetcher
from actor.client.join_answer import read_join
from actor.client.pusher import GRACE_SECONDS, UNLIMITED, Pusher, PushStream, RunChangedError
from actor.client.requests import Requests, WaitingBatch
from actor.spool import Spool
from actor.stat import ActorCounters
from common.data import ENVELOPE_BYTES, NO_MODEL, Column, Schema
from common.errors import RefusedError, SchemaMismatchError
from common.process.clocks import Backoff
from common.wire.channel import push_items
from common.wire.codec import buffer, decode, encode, schema_to_pb
from common.wire.compression import compress, decompress
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import ERROR_KEY
from common.wire.trust import Trust
from tests.actor.client.conftest import ScriptedLearner, Serve
from tests.actor.client.test_connector import JOINED
from tests.actor.client.test_connector import SCHEMA as JOINED_SCHEMA
from tests.cable import Cable
from tests.conftest import PATIENCE, wait_for
from tests.frames import SCHEMA as PICTURES
from tests.frames import check_pictures, picture_rows

SCHEMA = Schema((Column("n", "<i8"),))
CONFIG = '{"env": {"target": "a:b"}, "agent": {"target": "c:d"}, "push": {"window": 2}}'


@dataclass
class BreakingLearner(ScriptedLearner):
    """Stores like the real one. ``breaks[k]`` says after how many batches stream k ends, and in which way.

    Ways: "closed" in order, "lost" as by the network, "unacknowledged" the same after storing one more, "answered" as
    "lost", but just after an answer. Any other is an error key. A stream beyond the script ends when the actor
    leaves.
    """

    breaks: list[tuple[int, str]] = field(default_factory=list)
    run_ids: list[str] = field(default_factory=list)
    stop_at: int = 10**9
    stored: list[int] = field(default_factory=list)
    last_seq: int = 0
    after_drop: list[int] = field(default_factory=list)
    streams: int = 0
    goodbyes: int = 0
    last_report: pb.Report = field(default_factory=pb.Report)
    config: str = CONFIG
    is_away: Callable[[], bool] = lambda: False

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
        if self.streams and self.is_away():
            context.abort(grpc.StatusCode.UNAVAILABLE, "the learner is away")
        run_id = self.run_ids.pop(0) if self.run_ids else "run"
        return pb.JoinResponse(
            run_id=run_id,
            schema=schema_to_pb(SCHEMA),
            config_json=self.config,
            last_seq=self.last_seq,
            limits=pb.Limits(max_rows=1, max_message_bytes=1 << 20),
        )

    def PushItems(  # noqa: N802
        self, requests: Iterator[pb.PushItemsRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.PushItemsResponse]:
        after, way = self.breaks[self.streams] if self.streams < len(self.breaks) else (10**9, "")
        self.streams += 1
        batches = acked = 0
        for request in requests:
            if request.seq and batches >= after:
                if way == "unacknowledged":
                    self._store(request)
                if way == "closed":
                    return
                _break(context, way)
            batches += bool(request.seq)
            self._store(request)
            self.goodbyes += request.report.leaving
            self.last_report = request.report
            acked = max(acked, request.seq)
            yield pb.PushItemsResponse(acked_seq=acked, stop=len(self.stored) >= self.stop_at)
            if way == "answered" and batches >= after:
                _break(context, "lost")

    def _store(self, request: pb.PushItemsRequest) -> None:
        if request.seq > self.last_seq:
            assert request.seq == self.last_seq + 1
            self.last_seq = request.seq
            self.stored.extend(decode(SCHEMA, request.rows, request.payload)["n"].tolist())
            if request.after_drop:
                self.after_drop.append(self.stored[-1])


def _break(context: grpc.ServicerContext, way: str) -> NoReturn:
    key, code = (way, grpc.StatusCode.FAILED_PRECONDITION)
    if way in ("lost", "unacknowledged"):
        context.abort(grpc.StatusCode.UNAVAILABLE, "the network is gone")
    context.set_trailing_metadata(((ERROR_KEY, key),))
    context.abort(code, f"scripted {way}")
    raise AssertionError("abort returned")


@dataclass
class FilmLearner(BreakingLearner):
    """Takes pictures, compressed or not as it says at Join; keeps what came."""

    compressions: list[pb.Compression.ValueType] = field(default_factory=list)
    max_message_bytes: int = 1 << 20
    rows: list[int] = field(default_factory=list)
    came: list[tuple[int, bytes]] = field(default_factory=list)

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
        if self.streams and self.is_away():
            context.abort(grpc.StatusCode.UNAVAILABLE, "the learner is away")
        limits = pb.Limits(compressions=self.compressions, max_rows=1000, max_message_bytes=self.max_message_bytes)
        return pb.JoinResponse(
            schema=schema_to_pb(PICTURES), config_json=self.config, limits=limits, last_seq=self.last_seq
        )

    def _store(self, request: pb.PushItemsRequest) -> None:
        if request.seq > self.last_seq:
            self.last_seq = request.seq
            self.rows.append(request.rows)
            self.came.append((request.compression, request.payload))
            payload = decompress(request.payload, 1 << 20) if request.compression else request.payload
            rows = decode(PICTURES, request.rows, payload)
            check_pictures(rows)
            self.stored.extend(rows["n"].tolist())


@dataclass
class ForgetfulLearner(BreakingLearner):
    """After its first stream it has only ``remains`` of the batches that it has acknowledged."""

    remains: int = 0
    joins: list[tuple[int, int]] = field(default_factory=list)

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
        self.joins.append((request.incarnation, request.former_incarnation))
        if self.streams == 1:
            self.last_seq = min(self.last_seq, self.remains) if request.incarnation == self.joins[0][0] else 0
            self.stored = self.stored[: self.remains]
        return super().Join(request, context)


@dataclass
class Outcome:
    unacknowledged: int
    failure: Exception | None
    stopped: bool


def push(
    serve: Serve, learner: BreakingLearner, batches: int, pushed: list[int] | None = None, *, rows: int = 1
) -> Outcome:
    """Push batches of ``rows`` rows, 0, 1, 2, …, and say goodbye."""
    stopped = threading.Event()
    connector = Connector(f"127.0.0.1:{serve(learner)}", 5, PATIENCE, stopped, Trust())
    joined = connector.join()
    fetcher = ModelFetcher(connector.get_model, stopped)
    pusher = Pusher(connector, joined, fetcher, ActorCounters(), stopped)
    for n in range(batches):
        if stopped.is_set():
            break
        numbers = np.arange(n * rows, (n + 1) * rows)
        items = picture_rows(numbers) if joined.schema.has_pictures else {"n": numbers}
        pusher.send(buffer(joined.schema, items, rows), NO_MODEL)
        if pushed is not None:
            pushed.append(n)
    wait_for(lambda: not pusher.unacknowledged or stopped.is_set(), "everything is acknowledged")
    was_stopped = stopped.is_set()
    outcome = Outcome(pusher.finish(PATIENCE), pusher.failure, was_stopped)
    stopped.set()
    fetcher.end(5)
    connector.close()
    return outcome


WAYS = ["closed", "lost", "unacknowledged", "not_joined"]


@pytest.mark.parametrize("way", WAYS)
def test_all_rows_arrive_once_and_in_order_through_every_fault(serve: Serve, way: str) -> None:
    learner = BreakingLearner(breaks=[(0, way), (3, way), (1, way)])
    outcome = push(serve, learner, 20)
    assert learner.stored == list(range(20))
    assert outcome == Outcome(0, None, stopped=False)
    assert (learner.streams, learner.goodbyes) == (4, 1)


@dataclass
class Ending:
    """A pusher whose actor may be asked to stop at any moment."""

    pusher: Pusher
    stopped: threading.Event

    def send(self, n: int) -> None:
        self.pusher.send(buffer(SCHEMA, {"n": np.array([n])}, 1), NO_MODEL)


@pytest.fixture
def ending(serve: Serve) -> Iterator[Callable[[BreakingLearner], Ending]]:
    """Makes a pusher for a scripted learner; what belongs to it is ended at the end."""
    with ExitStack() as stack:

        def _ending(learner: BreakingLearner) -> Ending:
            stopped = threading.Event()
            connector = Connector(f"127.0.0.1:{serve(learner)}", 5, PATIENCE, stopped, Trust())
            stack.callback(connector.close)
            joined = connector.join()
            fetcher = ModelFetcher(connector.get_model, stopped)
            stack.callback(fetcher.end, 5)
            stack.callback(stopped.set)
            return Ending(Pusher(connector, joined, fetcher, ActorCounters(), stopped), stopped)

        yield _ending


Ends = Callable[[BreakingLearner], Ending]


def test_an_actor_that_has_been_told_to_stop_waits_between_its_tries_too(ending: Ends) -> None:
    learner = BreakingLearner(breaks=[(0, "lost")] * 10_000)
    actor = ending(learner)
    actor.send(0)
    actor.stopped.set()
    assert actor.pusher.finish(2.0) == 1
    assert learner.streams < 40, "the waits double, so ten tries or so fit into this time"


def test_an_actor_that_has_to_end_without_rows_joins_once_more_and_then_ends(ending: Ends) -> None:
    learner = BreakingLearner(breaks=[(0, "answered")] * 10_000)
    actor = ending(learner)
    actor.stopped.set()
    assert actor.pusher.finish(PATIENCE) == 0
    assert learner.streams < 5, "the one that was open, those meanwhile, and one more try"


def test_an_actor_that_is_told_to_stop_while_its_learner_is_away_waits_with_its_last_rows(ending: Ends) -> None:
    refused = list[int]()

    def is_away() -> bool:
        refused.append(len(refused))
        return len(refused) < 4

    learner = BreakingLearner(breaks=[(0, "lost")], is_away=is_away)
    actor = ending(learner)
    actor.send(0)
    actor.stopped.set()
    assert actor.pusher.finish(PATIENCE) == 0
    assert (learner.stored, learner.goodbyes, len(refused)) == ([0], 1, 4)


def test_an_actor_without_rows_does_not_wait_for_a_learner_that_is_away(ending: Ends) -> None:
    came = threading.Event()

    def is_away() -> bool:
        came.set()
        return True

    actor = ending(BreakingLearner(breaks=[(1, "lost")], is_away=is_away))
    actor.send(0)
    wait_for(lambda: not actor.pusher.unacknowledged, "it is acknowledged")
    actor.pusher._stream.cancel()  # type: ignore[union-attr]
    assert came.wait(PATIENCE)
    actor.stopped.set()
    assert actor.pusher.finish(PATIENCE / 2) == 0
    assert not actor.pusher._has_given_up


def test_an_actor_that_the_learner_has_told_to_stop_comes_back_with_its_last_rows(ending: Ends) -> None:
    learner = BreakingLearner(breaks=[(1, "lost")], stop_at=1)
    actor = ending(learner)
    for n in range(2):
        actor.send(n)
    wait_for(lambda: learner.streams == 2, "the stream breaks and the actor comes back")
    assert actor.pusher.told_to_stop
    assert actor.pusher.finish(PATIENCE) == 0
    assert (learner.stored, learner.goodbyes) == ([0, 1], 1)


def test_an_actor_that_the_learner_has_told_to_stop_comes_back_with_rows_that_it_puts_only_then(ending: Ends) -> None:
    learner = BreakingLearner(breaks=[(1, "answered")], stop_at=1)
    actor = ending(learner)
    actor.pusher.ready()
    actor.send(0)
    wait_for(lambda: actor.pusher.told_to_stop and learner.streams == 2, "it was told, the stream broke, it is back")
    actor.send(1)
    assert actor.pusher.finish(PATIENCE) == 0
    assert (learner.stored, learner.goodbyes) == ([0, 1], 1)


def test_a_learner_that_breaks_each_stream_at_once_hears_of_the_actor_less_and_less_often(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def delay(backoff: Backoff) -> float:
        tries.append(backoff._tries)
        backoff._tries += 1
        return 0.0

    monkeypatch.setattr(Backoff, "next_delay", delay)
    monkeypatch.setattr("actor.client.pusher.STEADY_SECONDS", math.inf)
    learner = BreakingLearner(breaks=[(1, "lost")] * 6)
    assert push(serve, learner, 20) == Outcome(0, None, stopped=False)
    assert tries == [0, 1, 2, 3, 4, 5], "an answer alone does not make the waits short again"
    assert learner.stored == list(range(20))


@pytest.mark.parametrize("way", WAYS)
def test_an_actor_whose_acknowledged_items_are_gone_goes_on_as_a_new_incarnation_in_its_place(
    serve: Serve, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    learner = ForgetfulLearner(breaks=[(5, way), (3, "lost")], remains=2)
    outcome = push(serve, learner, 20)
    assert learner.stored == [0, 1, *range(5, 20)], "2 to 4 were acknowledged, so the actor has them no more"
    assert outcome == Outcome(0, None, stopped=False)
    first, again, new, last = learner.joins
    assert first == again == (5, 0)
    assert new == last == (new[0], 5)
    assert new[0] not in (0, 5)
    assert "had acknowledged 5 messages of rows, and now has the first 2 of them" in caplog.text


def test_a_learner_that_has_stored_more_than_it_could_acknowledge_has_lost_nothing(serve: Serve) -> None:
    learner = ForgetfulLearner(breaks=[(5, "unacknowledged")], remains=10)
    assert push(serve, learner, 20) == Outcome(0, None, stopped=False)
    assert learner.stored == list(range(20))
    assert [incarnation for incarnation, _ in learner.joins] == [5, 5]


@dataclass
class TwinnedLearner(BreakingLearner):
    """Has ``ahead`` more messages of this incarnation when it joins again: those that a clone of the actor sent."""

    ahead: int = 0
    joins: list[tuple[int, int]] = field(default_factory=list)
    resent: list[int] = field(default_factory=list)

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
        self.joins.append((request.incarnation, request.former_incarnation))
        if len({incarnation for incarnation, _ in self.joins}) > 1:
            self.last_seq = 0
        elif len(self.joins) > 1:
            self.last_seq += self.ahead
        return super().Join(request, context)

    def _store(self, request: pb.PushItemsRequest) -> None:
        if 0 < request.seq <= self.last_seq:
            self.resent.append(request.seq)
        super()._store(request)


@pytest.mark.parametrize(
    ("breaks", "ahead"),
    [
        ([(5, "incarnation_shared")], 0),  # The clone has opened a stream.
        ([(5, "lost"), (0, "incarnation_shared")], 1),  # The learner has other rows under a number of this actor.
        ([(5, "lost")], 30),  # The learner has numbers that this actor has never given.
    ],
)
def test_an_actor_that_has_a_clone_goes_on_as_another_actor_and_loses_nothing(
    serve: Serve, breaks: list[tuple[int, str]], ahead: int, caplog: pytest.LogCaptureFixture
) -> None:
    learner = TwinnedLearner(breaks=breaks, ahead=ahead)
    assert push(serve, learner, 20) == Outcome(0, None, stopped=False)
    assert learner.stored == list(range(20))
    incarnations = [incarnation for incarnation, former in learner.joins if not former]
    assert len(incarnations) == len(learner.joins), "it does not take the other one's place"
    assert incarnations[0] == 5 != incarnations[-1]
    assert "another process pushes as this actor's incarnation" in caplog.text


def test_messages_that_may_be_stored_go_out_again_so_that_the_learner_can_compare_them(serve: Serve) -> None:
    learner = TwinnedLearner(breaks=[(5, "unacknowledged")])
    assert push(serve, learner, 20) == Outcome(0, None, stopped=False)
    assert learner.resent == [6]
    assert learner.stored == list(range(20))


def test_pictures_are_compressed_for_a_learner_that_takes_it(serve: Serve) -> None:
    plain = encode(PICTURES, picture_rows(np.array([0])), 1)
    old, new = FilmLearner(), FilmLearner(compressions=[pb.COMPRESSION_ZSTD])
    for learner in (old, new):
        push(serve, learner, 1)
    assert old.came == [(pb.COMPRESSION_UNSPECIFIED, plain)]
    assert new.came == [(pb.COMPRESSION_ZSTD, compress(plain))]


@pytest.mark.parametrize("way", WAYS)
def test_every_picture_arrives_once_and_in_order_through_faults_of_any_length(serve: Serve, way: str) -> None:
    pushed: list[int] = []
    learner = FilmLearner(
        breaks=[(2, way), (0, way)],
        compressions=[pb.COMPRESSION_ZSTD],
        config=CONFIG.replace('"window": 2', '"window": 9'),
        is_away=lambda: len(pushed) < 60,
    )
    assert push(serve, learner, 80, pushed) == Outcome(0, None, stopped=False)
    assert learner.stored == list(range(80))


@pytest.mark.parametrize(("room", "rows"), [(3 * PICTURES.row_bytes - 1, 2), (2 * PICTURES.row_bytes - 1, 1)])
def test_no_more_rows_go_together_than_a_message_may_hold(serve: Serve, room: int, rows: int) -> None:
    learner = FilmLearner(config=CONFIG.replace('"window": 2', '"window": 9'), max_message_bytes=ENVELOPE_BYTES + room)
    assert push(serve, learner, 40) == Outcome(0, None, stopped=False)
    assert sum(learner.rows) == 40
    assert max(learner.rows) == rows


def test_a_batch_that_is_larger_than_a_message_may_be_is_split(serve: Serve) -> None:
    learner = FilmLearner(max_message_bytes=ENVELOPE_BYTES + 3 * PICTURES.row_bytes)
    assert push(serve, learner, 5, rows=7) == Outcome(0, None, stopped=False)
    assert learner.stored == list(range(35))
    assert max(learner.rows) == 3


@pytest.mark.parametrize(
    ("told", "grace"), [({"paced": True}, 0.0), ({}, GRACE_SECONDS), ({"paced": True, "mirrors": True}, math.inf)]
)
def test_the_window_is_strict_while_a_replay_ratio_is_in_force(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, told: dict[str, bool], grace: float
) -> None:
    seen: list[float] = []
    hear = Pusher._hear

    def look(pusher: Pusher, response: pb.PushItemsResponse) -> None:
        response.MergeFrom(pb.PushItemsResponse(**told))  # type: ignore[arg-type]
        hear(pusher, response)
        seen.append(pusher._spool.grace)

    monkeypatch.setattr(Pusher, "_hear", look)
    assert push(serve, BreakingLearner(), 3) == Outcome(0, None, stopped=False)
    assert set(seen) == {grace}


def test_the_last_report_tells_of_reconnects_waiting_and_an_empty_spool(serve: Serve) -> None:
    learner = BreakingLearner(breaks=[(1, "lost"), (1, "closed")])
    push(serve, learner, 5)
    told = learner.last_report
    assert (told.leaving, told.reconnects, told.spool_bytes) == (True, 2, 0)
    assert told.wait_seconds > 0


def test_an_actor_that_may_drop_goes_on_in_an_outage_and_tells_what_it_dropped(serve: Serve) -> None:
    pushed: list[int] = []
    push_config = '"push": {"window": 2, "spool_bytes": 80, "when_full": "drop_oldest"}'
    learner = BreakingLearner(
        breaks=[(1, "lost")],
        config=CONFIG.replace('"push": {"window": 2}', push_config),
        is_away=lambda: len(pushed) < 100,
    )
    outcome = push(serve, learner, 100, pushed)
    assert outcome == Outcome(0, None, stopped=False)
    assert learner.stored == sorted(set(learner.stored))
    assert learner.stored[-4:] == list(range(96, 100)), "the spool keeps what it has sent, and beside it the newest"
    gaps = [after for before, after in pairwise([-1, *learner.stored]) if after != before + 1]
    assert learner.after_drop == gaps != [], "the first row after each gap says so"
    assert learner.last_report.dropped_items == 100 - len(learner.stored) > 50


def test_when_the_learner_says_stop_the_actor_hears_it(serve: Serve) -> None:
    learner = BreakingLearner(stop_at=5)
    outcome = push(serve, learner, 10_000)
    assert outcome.stopped
    assert outcome.failure is None
    assert learner.stored == list(range(len(learner.stored)))
    assert learner.goodbyes == 1


@pytest.mark.parametrize(("way", "kind"), [("bad_items", RefusedError), ("schema_mismatch", SchemaMismatchError)])
def test_a_final_refusal_ends_the_actor_with_its_error(serve: Serve, way: str, kind: type[Exception]) -> None:
    learner = BreakingLearner(breaks=[(2, way)])
    outcome = push(serve, learner, 10_000)
    assert type(outcome.failure) is kind
    assert str(outcome.failure) == f"scripted {way}"
    assert learner.streams == 1


def test_an_unforeseen_error_ends_the_actor_with_this_error(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("actor.client.pusher.PushStream.run", run)
    assert str(push(serve, BreakingLearner(), 10).failure) == "can't start new thread"


def test_another_run_at_the_same_address_is_noticed(serve: Serve) -> None:
    learner = BreakingLearner(breaks=[(2, "lost")], run_ids=["run", "another"])
    outcome = push(serve, learner, 10_000)
    assert type(outcome.failure) is RunChangedError
    assert learner.stored == [0, 1]


Open = Callable[..., PushStream]


class HearingLearner(ScriptedLearner):
    """Keeps what it hears; acknowledges all of it, or nothing; may refuse, or read nothing until ``ended`` is set."""

    def __init__(self, *, answers: bool = True, error: str = "", reads: bool = True) -> None:
        super().__init__(JOINED, [])
        self.heard: list[pb.PushItemsRequest] = []
        self.ended = threading.Event()
        self._answers, self._error, self._reads = answers, error, reads

    def PushItems(  # noqa: N802
        self, requests: Iterator[pb.PushItemsRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.PushItemsResponse]:
        try:
            if not self._reads:
                assert self.ended.wait(PATIENCE)
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
        batch = self.requests.make_batch(buffer(JOINED_SCHEMA, {"n": np.array([n])}, 1), NO_MODEL)
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
    monkeypatch.setattr("actor.client.pusher.HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr("actor.client.pusher.SILENCE_SECONDS", 0.1)
    learner = HearingLearner(answers=False)
    stream = line(learner).open()
    broken = stream.run(lambda _: None)
    assert broken is not None
    assert broken.startswith("CANCELLED")
    assert "the learner has been silent for 0.1 s" in caplog.text
    assert not stream.has_left


def test_a_silent_learner_is_left_also_while_grpc_waits_until_it_may_send(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("actor.client.pusher.HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr("actor.client.pusher.SILENCE_SECONDS", 0.5)
    learner = HearingLearner(reads=False)
    sender = line(learner)
    for _ in range(16):
        batch = sender.requests.make_batch(buffer(JOINED_SCHEMA, {"n": np.zeros(1 << 17, np.int64)}, 1 << 17), NO_MODEL)
        assert sender.spool.put(batch, batch.n_bytes, batch.group_rows, 0)
    stream, broken = sender.open(), list[str | None]()
    running = threading.Thread(target=lambda: broken.append(stream.run(lambda _: None)))
    running.start()
    running.join(PATIENCE)
    learner.ended.set()
    running.join(PATIENCE)
    assert str(broken[0]).startswith("CANCELLED")
    assert "the learner has been silent for 0.5 s" in caplog.text


def test_a_silent_learner_is_looked_for_on_another_connection(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP still acknowledges on the former one, and gRPC would keep it for longer than the patience."""
    monkeypatch.setattr("actor.client.pusher.SILENCE_SECONDS", 2.0)
    learner, stopped = BreakingLearner(), threading.Event()
    with Cable(f"127.0.0.1:{serve(learner)}") as cable:
        connector = Connector(cable.address, 5, 20.0, stopped, Trust())
        joined = connector.join()
        fetcher = ModelFetcher(connector.get_model, stopped)
        pusher = Pusher(connector, joined, fetcher, ActorCounters(), stopped)
        for n in range(2):
            pusher.send(buffer(joined.schema, {"n": np.array([n])}, 1), NO_MODEL)
            wait_for(lambda: not pusher.unacknowledged or stopped.is_set(), "it is acknowledged")
            cable.freeze()
        pusher.finish(1.0)
        stopped.set()
        fetcher.end(5)
        connector.close()
    assert pusher.failure is None
    assert learner.stored == [0, 1]


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
    monkeypatch.setattr("actor.client.pusher.SILENCE_SECONDS", 0.1)
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
