"""Who is let in by tokens: real calls to a real ingest process."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.errors import AuthenticationError
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.tokens import ACTOR_VARIABLE, UNNAMED, TokenSource, authorization
from common.wire.trust import Trust
from tests.conftest import PATIENCE, Command, wait_for
from tests.learner.scrapes import scrape_ingest
from tests.security.conftest import Secured, join, write
from tests.security.hostile import SERVICE
from tests.security.hostile import join as join_request
from tests.security.test_operators import look

SECONDS = PATIENCE
OLD, NEW = "old-old-old-old-old", "new-new-new-new-new"


@pytest.fixture
def channel(secured: Secured) -> Iterator[grpc.Channel]:
    """Encrypted, without a token."""
    authorities = (secured.certs / "ca.pem").read_bytes()
    with grpc.secure_channel(secured.address, grpc.ssl_channel_credentials(authorities)) as channel:
        yield channel


def secret_of(secured: Secured, name: str) -> str:
    """The newest token of a file."""
    return TokenSource(name, secured.certs / f"{name}.token").read()[0].secret


def metadata(secured: Secured, token: str) -> tuple[tuple[str, str], ...]:
    """With the token of that name; none for an empty one."""
    return (authorization(secret_of(secured, token)),) if token else ()


def service_names(channel: grpc.Channel, with_token: tuple[tuple[str, str], ...]) -> set[str]:
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    (answer,) = stub.ServerReflectionInfo(asked, timeout=SECONDS, metadata=with_token)
    return {service.name for service in answer.list_services_response.service}


def requests() -> Iterator[pb.PushItemsRequest]:
    yield pb.PushItemsRequest(incarnation=1)


CALLS: dict[str, Callable[[pb_grpc.LearnerServiceStub], Any]] = {
    "Join": lambda stub: stub.Join(pb.JoinRequest(), timeout=SECONDS),
    "GetModel": lambda stub: list(stub.GetModel(pb.GetModelRequest(), timeout=SECONDS)),
    "PushItems": lambda stub: list(stub.PushItems(requests(), timeout=SECONDS)),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_call_is_answered_without_a_token_and_the_refusal_says_nothing(channel: grpc.Channel, name: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        CALLS[name](pb_grpc.LearnerServiceStub(channel))
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNAUTHENTICATED, "not authenticated")


def test_an_actor_with_a_wrong_token_ends_at_once(secured: Secured, tmp_path: Path) -> None:
    with pytest.raises(AuthenticationError, match="the learner refused the token"):
        join(secured.address, secured.trust(token_file=write(tmp_path / "wrong.token", NEW)))


def test_a_worker_whose_token_is_refused_ends_with_an_exit_code_of_its_own(
    secured: Secured, start: Callable[..., Command], tmp_path: Path
) -> None:
    wrong = write(tmp_path / "wrong.token", NEW)
    worker = start(
        "actor-worker",
        "--learner",
        secured.address,
        "--ca",
        secured.path("ca.pem"),
        "--token-file",
        str(wrong),
    )
    assert worker.wait() == 15
    assert "actor-worker: the learner refused the token" in worker.output()
    assert "Traceback" not in worker.output()


def test_an_actor_without_a_token_ends_at_once(secured: Secured) -> None:
    with pytest.raises(AuthenticationError, match="the learner refused the token"):
        join(secured.address, secured.trust(token_file=None))


def test_the_token_may_come_from_the_environment(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{ACTOR_VARIABLE}_FILE", secured.path("actor.token"))
    assert join(secured.address, secured.trust(token_file=None))


def test_an_admins_token_does_not_make_an_actor(secured: Secured) -> None:
    with pytest.raises(AuthenticationError):
        join(secured.address, secured.trust(token_file=secured.path("admin.token")))


@pytest.mark.parametrize("token", ["", "actor"])
def test_only_admins_may_list_the_services(secured: Secured, channel: grpc.Channel, token: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        service_names(channel, metadata(secured, token))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "crossborder.v1.LearnerService" in service_names(channel, metadata(secured, "admin"))


def test_health_is_told_to_everybody(channel: grpc.Channel) -> None:
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def tokens(secured: Secured) -> Iterator[Path]:
    """The learner's file of actors' tokens; it gets its content back at the end."""
    path = secured.certs / "actor.token"
    before = path.read_text()
    yield path
    write(path, before)


def test_two_tokens_are_valid_while_one_replaces_the_other(secured: Secured, tokens: Path, tmp_path: Path) -> None:
    old = secured.trust(token_file=write(tmp_path / "old.token", OLD))
    new = secured.trust(token_file=write(tmp_path / "new.token", NEW))
    write(tokens, OLD)
    join(secured.address, old)
    write(tokens, NEW, OLD)
    join(secured.address, old)
    join(secured.address, new)
    write(tokens, NEW)
    join(secured.address, new)
    with pytest.raises(AuthenticationError):
        join(secured.address, old)
    assert secured.server.ingest.restarts == 0


def named_trust(secured: Secured, directory: Path, name: str, token: str) -> Trust:
    return secured.trust(token_file=write(directory / f"{name}.token", f"{name} {token}"))


def audited(secured: Secured, **facts: object) -> list[dict[str, Any]]:
    """The lines of the audit log that say this."""
    lines = (secured.server.run.dir.path / "audit.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if facts.items() <= entry.items()]


class Streaming:
    """A stream that an actor with this token has open."""

    def __init__(self, secured: Secured, token: str, incarnation: int) -> None:
        encrypted = grpc.ssl_channel_credentials((secured.certs / "ca.pem").read_bytes())
        credentials = grpc.composite_channel_credentials(encrypted, grpc.access_token_call_credentials(token))
        self._channel = grpc.secure_channel(secured.address, credentials)
        stub = pb_grpc.LearnerServiceStub(self._channel)
        stub.Join(join_request(incarnation), timeout=SECONDS)
        self._over = threading.Event()
        self._answers = stub.PushItems(self._requests(incarnation), timeout=SECONDS)
        next(self._answers)

    def _requests(self, incarnation: int) -> Iterator[pb.PushItemsRequest]:
        while not self._over.wait(0.1):
            yield pb.PushItemsRequest(incarnation=incarnation)

    def heartbeat(self) -> None:
        """Wait until one more is answered."""
        next(self._answers)

    def end(self) -> grpc.StatusCode:
        """How the learner ends the stream."""
        with pytest.raises(grpc.RpcError) as ended:
            for _ in self._answers:
                pass
        return ended.value.code()

    def close(self) -> None:
        self._over.set()
        self._channel.close()


def test_a_token_that_is_taken_out_of_the_file_ends_its_holders_streams_and_nobody_elses(
    secured: Secured, tokens: Path, tmp_path: Path
) -> None:
    write(tokens, f"alice {OLD}", f"bob {NEW}")
    with closing(Streaming(secured, OLD, 11)) as alices, closing(Streaming(secured, NEW, 12)) as bobs:
        write(tokens, f"bob {NEW}")
        assert alices.end() is grpc.StatusCode.UNAUTHENTICATED
        bobs.heartbeat()
        with pytest.raises(AuthenticationError):
            join(secured.address, named_trust(secured, tmp_path, "alice", OLD))
        bobs.heartbeat()
    assert audited(secured, event="revoked", role="actor", name="alice")
    assert audited(secured, event="refused", outcome="unauthenticated", name="alice", peer="127.0.0.1")


def test_a_token_that_another_one_of_the_same_name_replaces_sends_its_holder_back_to_join(
    secured: Secured, tokens: Path
) -> None:
    write(tokens, f"alice {OLD}")
    with closing(Streaming(secured, OLD, 13)) as alices:
        write(tokens, f"alice {NEW}", f"alice {OLD}")
        alices.heartbeat()
        write(tokens, f"alice {NEW}")
        assert alices.end() is grpc.StatusCode.UNAVAILABLE


def test_a_worker_goes_on_with_the_token_that_replaces_its_own_and_ends_when_that_is_taken_away(
    secured: Secured, tokens: Path, start: Callable[..., Command], tmp_path: Path
) -> None:
    write(tokens, f"carol {OLD}")
    own = write(tmp_path / "carol.token", f"carol {OLD}")
    worker = start(
        *("actor-worker", "--learner", secured.address, "--allow", "tests.parts"),
        *("--ca", secured.path("ca.pem"), "--token-file", str(own)),
    )

    def joins() -> int:
        return len(audited(secured, event="join", name="carol"))

    def is_online() -> bool:
        return any(actor.name == "carol" and actor.state == "online" for actor in look(secured, "admin.token").actors)

    wait_for(is_online, "its stream is open")
    write(tokens, f"carol {NEW}", f"carol {OLD}")
    write(own, f"carol {NEW}")
    write(tokens, f"carol {NEW}")
    wait_for(lambda: joins() == 2, "it joins again with the new token")
    write(tokens, f"dave {OLD}")
    assert worker.wait() == 15
    assert "the learner refused the token" in worker.output()


def test_an_emptied_file_throws_everybody_out(secured: Secured, tokens: Path) -> None:
    write(tokens, f"alice {OLD}")
    with closing(Streaming(secured, OLD, 14)) as alices:
        tokens.write_text("")
        assert alices.end() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(AuthenticationError):
        join(secured.address, secured.trust(token_file=write(tokens.with_name("old"), OLD)))


def test_an_actor_is_known_by_the_name_of_its_token_and_by_its_host(
    secured: Secured, tokens: Path, tmp_path: Path
) -> None:
    write(tokens, f"alice {OLD}")
    with closing(Streaming(secured, OLD, 15)):
        join(secured.address, named_trust(secured, tmp_path, "alice", OLD))
        (actor,) = (actor for actor in look(secured, "admin.token").actors if actor.pid == os.getpid())
        assert (actor.name, actor.version) == ("alice", version("crossborder"))
        labels = f"[{actor.actor_id}][{socket.gethostname()[:64]}][alice][{os.getpid()}][{version('crossborder')}]"
        assert scrape_ingest(secured.server)[f"actor_info{labels}"] == 1
    (joined,) = audited(secured, event="join", name="alice", pid=os.getpid())
    assert joined["host"] == socket.gethostname()
    assert audited(secured, event="admin", method="/crossborder.v1.AdminService/Status", name=UNNAMED)


@pytest.mark.parametrize("given", ["{}", "Basic {}", "Bearer"])
def test_a_token_counts_only_after_its_scheme(secured: Secured, channel: grpc.Channel, given: str) -> None:
    value = given.format(secret_of(secured, "actor"))
    with pytest.raises(grpc.RpcError) as refused:
        pb_grpc.LearnerServiceStub(channel).Check(
            pb.CheckRequest(), timeout=SECONDS, metadata=(("authorization", value),)
        )
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_scheme_may_be_written_in_any_case(secured: Secured, channel: grpc.Channel) -> None:
    value = f"bEARER {secret_of(secured, 'actor')}"
    stub = pb_grpc.LearnerServiceStub(channel)
    assert stub.Check(pb.CheckRequest(), timeout=SECONDS, metadata=(("authorization", value),)).max_actors


def test_a_flood_of_wrong_tokens_is_one_line_of_the_audit_log(secured: Secured, channel: grpc.Channel) -> None:
    before = len(audited(secured, outcome="unauthenticated", method=f"{SERVICE}/GetModel"))
    for _ in range(50):
        with pytest.raises(grpc.RpcError):
            CALLS["GetModel"](pb_grpc.LearnerServiceStub(channel))
    assert len(audited(secured, outcome="unauthenticated", method=f"{SERVICE}/GetModel")) <= before + 2


def test_refusals_are_counted_and_the_log_holds_no_token(
    secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counted = "unauthenticated_calls_total"
    before = scrape_ingest(secured.server)[counted]
    with pytest.raises(AuthenticationError):
        join(secured.address, secured.trust(token_file=write(tmp_path / "wrong.token", NEW)))
    assert scrape_ingest(secured.server)[counted] == before + 1
    valid = {secret_of(secured, name) for name in ("actor", "admin")}
    assert not any(token in caplog.text for token in {NEW, *valid})
