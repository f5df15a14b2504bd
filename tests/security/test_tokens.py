"""Who is let in by tokens: real calls to a real ingest process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.errors import AuthenticationError
from common.pb import crossborder_pb2 as pb
from common.pb import crossborder_pb2_grpc as pb_grpc
from common.rpc import authorization
from common.tokens import ACTOR_VARIABLE, read_tokens
from tests.conftest import Command
from tests.learner.test_metrics import scrape_ingest
from tests.security.conftest import Secured, join, write

SECONDS = 20.0
OLD, NEW = "old-old-old-old-old", "new-new-new-new-new"


@pytest.fixture
def channel(secured: Secured) -> Iterator[grpc.Channel]:
    """Encrypted, without a token."""
    authorities = (secured.certs / "ca.pem").read_bytes()
    with grpc.secure_channel(secured.address, grpc.ssl_channel_credentials(authorities)) as channel:
        yield channel


def metadata(secured: Secured, token: str) -> tuple[tuple[str, str], ...]:
    """With the token of that name; none for an empty one."""
    return (authorization(read_tokens(secured.certs / f"{token}.token")[0]),) if token else ()


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
        "actor.cli", "--learner", secured.address, "--ca", secured.path("ca.pem"), "--token-file", str(wrong)
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
    assert secured.server.ingest._supervisor.restarts == 0


def test_refusals_are_counted_and_the_log_holds_no_token(
    secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counted = "unauthenticated_calls_total"
    before = scrape_ingest(secured.server)[counted]
    with pytest.raises(AuthenticationError):
        join(secured.address, secured.trust(token_file=write(tmp_path / "wrong.token", NEW)))
    assert scrape_ingest(secured.server)[counted] == before + 1
    valid = {*read_tokens(secured.certs / "actor.token"), *read_tokens(secured.certs / "admin.token")}
    assert not any(token in caplog.text for token in {NEW, *valid})
