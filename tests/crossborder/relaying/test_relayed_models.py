"""A relay's copies of models, over a real learner host and real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from actor.client.assembly import assemble
from common.data import ModelVersion
from common.wire.channel import GetModel, get_model
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import CLIENT_OPTIONS, NOT_AUTHENTICATED, version_to_pb
from common.wire.trust import Trust
from crossborder.relaying.relayed_models import TOKEN_SECONDS, AcceptedTokens, RelayedModels
from learner.loop.server import LearnerServer
from tests.actor.client.conftest import ScriptedLearner, Serve
from tests.actor.client.test_assembly import VERSION, chunks
from tests.conftest import PATIENCE, wait_for
from tests.crossborder.relaying.relays import relaying
from tests.security.conftest import Secured, replace


@pytest.fixture
def neighbour(host: LearnerServer) -> Iterator[GetModel]:
    """Gets models of ``host`` through a relay."""
    with relaying(host.ingest.address) as address, grpc.insecure_channel(address, options=CLIENT_OPTIONS) as channel:
        yield get_model(channel)


def fetch(source: GetModel, have: ModelVersion | None = None) -> ModelVersion | None:
    request = pb.GetModelRequest(have=None if have is None else version_to_pb(have))
    file = assemble(source(request, timeout=PATIENCE))
    return None if file is None else file.model.version


def test_neighbours_get_the_model_that_was_fetched_once(host: LearnerServer, neighbour: GetModel) -> None:
    first = ModelVersion(1, 0)
    assert [fetch(neighbour) for _ in range(4)] == [first] * 4
    assert (host.control.fetches, host.control.model_bytes_sent) == (1, host.publisher.blob_bytes)
    assert fetch(neighbour, first) is None


def test_an_actor_with_the_copy_gets_the_next_model(host: LearnerServer, neighbour: GetModel) -> None:
    first = fetch(neighbour)
    host.learner.publish(9)
    assert fetch(neighbour, first) == ModelVersion(1, 9)
    assert fetch(neighbour, first) == ModelVersion(1, 9)
    assert host.control.fetches == 2


def test_nobody_gets_the_copy_without_a_token_that_the_learner_accepts(tmp_path: Path) -> None:
    secured = Secured(tmp_path)
    files: dict[str, Any] = {"certificate": Path(secured.path("server.pem")), "key": Path(secured.path("server.key"))}
    authorities = Path(secured.path("ca.pem")).read_bytes()
    token = Path(secured.path("actor.token")).read_text().split()[-1]
    upstream = Trust.model_validate({"ca": secured.path("ca.pem")})
    with (
        secured.server,
        relaying(secured.address, trust=upstream, **files) as address,
        grpc.secure_channel(address, grpc.ssl_channel_credentials(authorities)) as channel,
    ):
        source = get_model(channel)

        def code(secret: str | None) -> grpc.StatusCode:
            metadata = () if secret is None else (("authorization", f"Bearer {secret}"),)
            try:
                assemble(source(pb.GetModelRequest(), metadata=metadata, timeout=PATIENCE))
            except grpc.RpcError as error:
                found: grpc.StatusCode = error.code()
                return found
            return grpc.StatusCode.OK

        refused = grpc.StatusCode.UNAUTHENTICATED
        assert [code(None), code("x" * 32), code(token), code(None), code("x" * 32)] == [
            refused,
            refused,
            grpc.StatusCode.OK,
            refused,
            refused,
        ]
        replace(Path(secured.path("actor.token")), b"other 0123456789abcdef0123456789abcdef\n")
        wait_for(lambda: code(token) is refused, f"the token is refused {TOKEN_SECONDS} s after it was revoked")


def test_a_damaged_model_is_given_to_no_actor_and_fetched_again(serve: Serve) -> None:
    damaged = chunks()[:-1]
    learner = ScriptedLearner(pb.JoinResponse(), [damaged, chunks()])
    with relaying(f"127.0.0.1:{serve(learner)}") as address, grpc.insecure_channel(address) as channel:
        source = get_model(channel)
        with pytest.raises(grpc.RpcError) as told:
            fetch(source)
        assert told.value.code() is grpc.StatusCode.UNAVAILABLE
        assert fetch(source) == VERSION


def test_a_copy_of_another_run_is_not_given(serve: Serve) -> None:
    other = ModelVersion(1, 3)
    learner = ScriptedLearner(pb.JoinResponse(run_id="one"), [chunks(), chunks(version=other)])
    with relaying(f"127.0.0.1:{serve(learner)}") as address, grpc.insecure_channel(address) as channel:
        source, stub = get_model(channel), pb_grpc.LearnerServiceStub(channel)
        stub.Join(pb.JoinRequest(), timeout=PATIENCE)
        assert fetch(source) == VERSION
        learner.joined = pb.JoinResponse(run_id="two")
        stub.Join(pb.JoinRequest(), timeout=PATIENCE)
        assert fetch(source) == other


def test_a_model_of_the_pool_is_fetched_once_whatever_is_the_newest(serve: Serve) -> None:
    newest, gone = ModelVersion(1, 90), pb.GetModelResponse(not_modified=True)
    learner = ScriptedLearner(pb.JoinResponse(), [chunks(), chunks(version=newest), [gone]])
    with relaying(f"127.0.0.1:{serve(learner)}") as address, grpc.insecure_channel(address) as channel:
        source = get_model(channel)

        def fetch_opponent(version: ModelVersion) -> ModelVersion | None:
            file = assemble(source(pb.GetModelRequest(version=version_to_pb(version)), timeout=PATIENCE))
            return None if file is None else file.model.version

        assert fetch_opponent(VERSION) == VERSION
        assert fetch(source) == newest
        assert fetch_opponent(VERSION) == VERSION
        assert len(learner.versions) == 2
        assert fetch_opponent(ModelVersion(1, 5)) is None, "the pool has it no more"


STRANGER = (("authorization", "Bearer of a stranger"),)


class SlowToRefuse(ScriptedLearner):
    """A learner that refuses a stranger only once a test lets it, as one at the end of a slow link."""

    def __init__(self) -> None:
        super().__init__(pb.JoinResponse(), [chunks()])
        self.is_asked, self.refuses = threading.Event(), threading.Event()

    def _refuse_strangers(self, context: grpc.ServicerContext) -> None:
        if STRANGER[0] in [(key, value) for key, value in context.invocation_metadata()]:
            self.is_asked.set()
            self.refuses.wait()
            context.abort(grpc.StatusCode.UNAUTHENTICATED, NOT_AUTHENTICATED)

    def Check(self, request: pb.CheckRequest, context: grpc.ServicerContext) -> pb.CheckResponse:  # noqa: N802
        self._refuse_strangers(context)
        return super().Check(request, context)

    def GetModel(  # noqa: N802
        self, request: pb.GetModelRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GetModelResponse]:
        self._refuse_strangers(context)
        yield from super().GetModel(request, context)


def test_strangers_who_ask_for_models_keep_no_actor_waiting(serve: Serve) -> None:
    learner = SlowToRefuse()
    with relaying(f"127.0.0.1:{serve(learner)}") as address, grpc.insecure_channel(address) as channel:
        source = get_model(channel)
        asked = source(pb.GetModelRequest(), metadata=STRANGER, timeout=PATIENCE)
        assert learner.is_asked.wait(PATIENCE)
        try:
            assert fetch(source) == VERSION
        finally:
            learner.refuses.set()
        with suppress(grpc.RpcError):
            assert not list(asked)
        assert asked.code() is grpc.StatusCode.UNAUTHENTICATED


class Gated:
    """A learner's end of a channel; it answers that there is no newer model, once a test lets it."""

    def __init__(self) -> None:
        self.n_asked, self.is_asked, self.answers = 0, asyncio.Event(), asyncio.Event()

    def unary_stream(self, _path: str) -> Any:
        return self._get_model

    async def _get_model(self, _request: bytes, **_options: object) -> AsyncIterator[bytes]:
        self.n_asked += 1
        self.is_asked.set()
        await self.answers.wait()
        yield pb.GetModelResponse(version=version_to_pb(VERSION), not_modified=True).SerializeToString()


def test_calls_that_wait_for_the_learners_answer_share_the_next_one() -> None:
    async def ask_often() -> int:
        async def accept(_metadata: object) -> None:
            """Take every token."""

        learner = Gated()
        models = RelayedModels(cast("grpc.aio.Channel", learner), AcceptedTokens(accept))
        request = pb.GetModelRequest(have=version_to_pb(VERSION))
        tasks = [asyncio.create_task(models.answer(request, [("authorization", f"Bearer {i}")])) for i in range(20)]
        await learner.is_asked.wait()
        learner.answers.set()
        for answer in await asyncio.gather(*tasks):
            assert pb.GetModelResponse.FromString(answer[0]).not_modified
        return learner.n_asked

    assert asyncio.run(ask_often()) == 2
