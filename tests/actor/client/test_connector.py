from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from actor.client.connector import (
    JOIN_SECONDS,
    LEAST_JOIN_SECONDS,
    Connector,
    LearnerAwayError,
    follow,
    new_incarnation,
)
from common.config.run_config import RunConfig
from common.data import NO_MODEL, Column, ModelVersion, Schema
from common.errors import AuthenticationError, ConfigError, LearnerUnreachableError, RefusedError
from common.wire import owners
from common.wire.codec import schema_to_pb
from common.wire.endpoints import Endpoint
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import ERROR_KEY, StoppingError
from common.wire.trust import Trust
from learner.loop.server import LearnerServer
from tests.actor.client.conftest import ScriptedLearner, Serve
from tests.conftest import PATIENCE, wait_for
from tests.parts import counting_schema
from tests.users import as_nobody, needs_root

SCHEMA = Schema((Column("n", "<i8"),))
JOINED = pb.JoinResponse(
    actor_id=3,
    run_id="a run",
    seed=5,
    epsilon=0.25,
    schema=schema_to_pb(SCHEMA),
    config_json='{"env": {"target": "a:b"}, "agent": {"target": "c:d"}, "push": {"n_buffer": 17}}',
    last_seq=9,
    newest=pb.ModelVersion(incarnation=2, opt_steps=30),
    limits=pb.Limits(max_rows=100, max_message_bytes=1 << 20),
)
Connect = Callable[..., Connector]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes connectors; they are closed at the end."""
    made: list[Connector] = []

    def _connect(
        address: str, patience: float = PATIENCE, incarnation: int = 1, cancelled: threading.Event | None = None
    ) -> Connector:
        made.append(Connector(address, incarnation, patience, cancelled or threading.Event(), Trust()))
        return made[-1]

    yield _connect
    for connector in made:
        connector.close()


def test_an_answer_to_join_is_read(serve: Serve, connect: Connect) -> None:
    joined = connect(f"127.0.0.1:{serve(ScriptedLearner(JOINED, []))}").join()
    assert (joined.actor_id, joined.run_id, joined.seed, joined.epsilon) == (3, "a run", 5, 0.25)
    assert (joined.schema, joined.last_seq, joined.newest) == (SCHEMA, 9, ModelVersion(2, 30))
    assert (joined.config.env.target, joined.config.agent.target, joined.config.push.n_buffer) == ("a:b", "c:d", 17)


def test_a_real_learner_gives_what_its_configuration_says(host: LearnerServer, connect: Connect) -> None:
    config: RunConfig = host.config
    joined = connect(host.ingest.address).join()
    assert joined.config == config.actor_part()
    assert (joined.actor_id, joined.seed, joined.epsilon) == (0, config.seed, config.exploration.epsilon(0))
    assert joined.last_seq == 0
    assert joined.newest > NO_MODEL
    assert joined.schema == counting_schema()


def test_joining_again_is_the_same_actor_and_another_incarnation_another(host: LearnerServer, connect: Connect) -> None:
    first, other = connect(host.ingest.address, incarnation=11), connect(host.ingest.address, incarnation=12)
    ids = [connector.join().actor_id for connector in (first, other, first)]
    assert ids == [0, 1, 0]


@pytest.mark.parametrize("patience", [0.0, 0.3])
def test_a_learner_that_is_not_there_is_unreachable_within_the_patience(
    free_port: int, connect: Connect, patience: float
) -> None:
    with pytest.raises(LearnerUnreachableError, match=rf":{free_port}: no learner for {patience:g} s: UNAVAILABLE"):
        connect(f"127.0.0.1:{free_port}", patience).join()


@pytest.mark.parametrize(("patience", "seconds"), [(0.0, LEAST_JOIN_SECONDS), (PATIENCE, JOIN_SECONDS)])
def test_each_try_has_time_for_an_answer_whatever_is_left_of_the_patience(
    free_port: int, connect: Connect, patience: float, seconds: float
) -> None:
    connector, given = connect(f"127.0.0.1:{free_port}", patience), list[float]()

    def join(_: pb.JoinRequest, timeout: float) -> pb.JoinResponse:
        given.append(timeout)
        return JOINED

    connector.stub.Join = join  # type: ignore[assignment]
    connector.join()
    assert given == [seconds]


def test_a_learner_that_comes_late_is_found(
    free_port: int, serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(connect(f"127.0.0.1:{free_port}").join)
        wait_for(lambda: "waiting for the learner" in caplog.text, "the first try")
        serve(ScriptedLearner(JOINED, []), free_port)
        assert joining.result(PATIENCE).run_id == "a run"
    assert caplog.text.count("waiting for the learner") == 1


def test_an_actor_that_is_told_to_stop_does_not_go_on_waiting(
    free_port: int, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cancelled = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(connect(f"127.0.0.1:{free_port}", 100 * PATIENCE, cancelled=cancelled).join)
        wait_for(lambda: "waiting for the learner" in caplog.text, "the first try")
        assert not joining.done()
        cancelled.set()
        with pytest.raises(StoppingError, match="told to stop"):
            joining.result(PATIENCE)


def test_a_call_that_was_finally_refused_is_not_repeated(host: LearnerServer, connect: Connect) -> None:
    with pytest.raises(RefusedError, match="incarnation: expected a random number, found 0"):
        connect(host.ingest.address, 100 * PATIENCE, incarnation=0).join()


def test_settings_that_differ_in_a_later_answer_are_named_with_both_values(serve: Serve, connect: Connect) -> None:
    later = pb.JoinResponse()
    later.CopyFrom(JOINED)
    later.config_json = JOINED.config_json.replace('"c:d"', '"c:d", "params": {"lr": 0.5}').replace("17", "18")
    later.epsilon, later.last_seq, later.seed = 0.5, 12, 7
    before, now = (connect(f"127.0.0.1:{serve(ScriptedLearner(told, []))}").join() for told in (JOINED, later))
    assert before.changes(now) == [
        "agent.params.lr: None → 0.5",
        "exploration epsilon: 0.25 → 0.5",
        "push.n_buffer: 17 → 18",
    ]
    assert before.changes(before) == []


def test_an_actor_gets_the_id_that_it_asks_for_and_an_impossible_id_is_refused(
    host: LearnerServer,
) -> None:
    def join(actor_id: int) -> int:
        connector = Connector(
            host.ingest.address, new_incarnation(), PATIENCE, threading.Event(), Trust(), actor_id=actor_id
        )
        try:
            return connector.join().actor_id
        finally:
            connector.close()

    assert join(3) == 3
    with pytest.raises(RefusedError, match=r"wanted_id: expected less than \d+ \(server.max_actors\), found 99999"):
        join(99999)


def test_a_new_incarnation_names_the_incarnation_that_it_replaces(serve: Serve, connect: Connect) -> None:
    asked: list[pb.JoinRequest] = []

    class Learner(ScriptedLearner):
        def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
            asked.append(request)
            return self.joined

    connector = connect(f"127.0.0.1:{serve(Learner(JOINED, []))}", incarnation=11)
    for keeps_place in (True, False):
        connector.join()
        connector.renew(keeps_place=keeps_place)
    connector.join()
    first, second, third = asked
    assert (first.incarnation, first.former_incarnation) == (11, 0)
    assert second.former_incarnation == 11
    assert third.former_incarnation == 0, "a new actor, in nobody's place"
    assert len({request.incarnation for request in asked}) == 3


class Leads(ScriptedLearner):
    """Leads to another learner those who take it, and notes who asked."""

    def __init__(self, elsewhere: str) -> None:
        super().__init__(JOINED, [])
        self.elsewhere = elsewhere
        self.asked: list[bool] = []

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
        self.asked.append(request.takes_elsewhere)
        return pb.JoinResponse(elsewhere=self.elsewhere) if request.takes_elsewhere else JOINED


def test_an_actor_joins_the_learner_to_which_it_is_led_and_later_joins_it_again(serve: Serve, connect: Connect) -> None:
    other = Leads("127.0.0.1:1")
    there = f"127.0.0.1:{serve(other)}"
    first = Leads(there)
    connector = connect(f"127.0.0.1:{serve(first)}")
    connector.join()
    connector.join()
    assert connector.endpoint.address == there
    assert (first.asked, other.asked) == ([True], [False, False])


@pytest.mark.parametrize("elsewhere", ["127.0.0.1:1", "gpu-host:50051", "no address"])
def test_an_actor_that_is_led_where_it_cannot_go_stays_and_says_why(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture, elsewhere: str
) -> None:
    learner = Leads(elsewhere)
    here = f"127.0.0.1:{serve(learner)}"
    connector = connect(here)
    assert connector.join().run_id == "a run"
    assert connector.endpoint.address == here
    assert learner.asked == [True, False]
    assert f"leads this actor to '{elsewhere}', but it stays" in caplog.text


def test_of_several_addresses_a_learner_that_answers_is_joined(serve: Serve, connect: Connect, free_port: int) -> None:
    there = f"127.0.0.1:{serve(ScriptedLearner(JOINED, []))}"
    connector = connect(f"127.0.0.1:{free_port},{there}")
    assert connector.join().run_id == "a run"
    assert connector.endpoint.address == there


def test_only_an_incarnation_that_has_joined_and_could_go_elsewhere_hears_that_its_learner_is_away(
    serve: Serve, connect: Connect, free_port: int
) -> None:
    nobody = f"127.0.0.1:{free_port},localhost:{free_port}"
    with pytest.raises(LearnerUnreachableError) as never_joined:
        connect(nobody, 0.2).join()
    assert type(never_joined.value) is LearnerUnreachableError
    connector = connect(nobody, 0.2)
    with pytest.raises(LearnerUnreachableError):
        connector.join()
    connector.renew(keeps_place=True)
    with pytest.raises(LearnerAwayError, match=f":{free_port}: no learner for 0.2 s"):
        connector.join()
    connector.renew(keeps_place=False)
    with pytest.raises(LearnerUnreachableError, match=f"127.0.0.1:{free_port},localhost:{free_port}: no learner"):
        connector.join()


@needs_root
def test_an_actor_joins_no_learner_of_another_user_in_the_clear(serve: Serve) -> None:
    with as_nobody():
        port = serve(ScriptedLearner(pb.JoinResponse(), []))
    connector = Connector(f"127.0.0.1:{port}", 1, PATIENCE, threading.Event(), Trust())
    with pytest.raises(AuthenticationError, match="expected this user's or root's learner, found one of uid"):
        connector.join()
    connector.close()


def test_a_learner_that_ends_as_it_answers_is_asked_again(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose it was can no longer be known, so the actor would allow none of its parts, and would end."""
    port, listeners = serve(ScriptedLearner(JOINED, [])), [{os.geteuid()}, set[int]()]
    monkeypatch.setattr(
        owners, "find_listeners", lambda _: frozenset(listeners.pop(0) if listeners else {os.geteuid()})
    )
    assert connect(f"127.0.0.1:{port}").join().is_own_host
    assert not listeners


TLS, PLAIN, INSECURE = Trust(ca="ca.pem"), Trust(), Trust(insecure=True)


@pytest.mark.parametrize(
    ("here", "elsewhere", "trust", "listed"),
    [
        ("127.0.0.1:1", "127.0.0.1:2", PLAIN, []),
        ("localhost:1", "[::1]:2", PLAIN, []),
        ("a:1", "b:2", TLS, []),
        ("a:1", "b:2", INSECURE, ["a", "b"]),
        ("a:1", "a:2", INSECURE, ["a"]),
    ],
)
def test_an_actor_follows_to_a_learner_that_it_trusts_as_much(
    here: str, elsewhere: str, trust: Trust, listed: list[str]
) -> None:
    assert follow(Endpoint.of(here), elsewhere, trust, listed) == Endpoint.of(elsewhere)


def test_an_actor_on_the_host_of_learners_that_listen_everywhere_stays_on_loopback() -> None:
    led = follow(Endpoint.of("127.0.0.1:1"), f"{socket.gethostname()}:2", PLAIN, [])
    assert led == Endpoint.of("127.0.0.1:2")


@pytest.mark.parametrize(
    ("here", "elsewhere", "trust", "message"),
    [
        ("127.0.0.1:1", "evil:2", PLAIN, "a learner on the actor's host may lead it only to this host"),
        ("127.0.0.1:1", "evil:2", TLS, "a learner on the actor's host may lead it only to this host"),
        ("a:1", "127.0.0.1:2", TLS, "and others to other hosts"),
        ("a:1", "b:2", INSECURE, "follows only to hosts that --learner names; name b there too"),
        ("a:1", "b\x1b[2J:2", TLS, r"found 'b\\x1b\[2J:2'"),
        ("a:1", "b" * 400 + ":2", TLS, "at most 300 characters"),
    ],
)
def test_an_actor_is_not_led_where_it_could_trust_less(here: str, elsewhere: str, trust: Trust, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        follow(Endpoint.of(here), elsewhere, trust, ["a"])


def test_a_text_that_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        follow(Endpoint.of("a:1"), "b", TLS, [])


class Listening(ScriptedLearner):
    """Keeps the requests to join, and refuses the first ones, since another learner has taken over the run."""

    refused = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.requests: list[pb.JoinRequest] = []

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
        self.requests.append(request)
        if len(self.requests) <= self.refused:
            context.set_trailing_metadata(((ERROR_KEY, "taken_over"),))
            context.abort(grpc.StatusCode.UNAVAILABLE, "another learner goes on with this run")
        return super().Join(request, context)


def test_an_actor_tells_the_newest_life_of_its_run_that_it_knows(serve: Serve, connect: Connect) -> None:
    answer = pb.JoinResponse()
    answer.CopyFrom(JOINED)
    answer.epoch = 41
    learner = Listening(answer, [])
    connector = connect(f"127.0.0.1:{serve(learner)}")
    connector.join()
    connector.join()
    assert [(request.run_id, request.epoch) for request in learner.requests] == [("", 0), ("a run", 41)]


def test_an_actor_waits_until_the_name_leads_to_the_newest_learner(serve: Serve, connect: Connect) -> None:
    learner = Listening(JOINED, [])
    learner.refused = 2
    assert connect(f"127.0.0.1:{serve(learner)}").join().run_id == "a run"
    assert len(learner.requests) == 3
