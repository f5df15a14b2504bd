"""Models as ingest sends them: from slots in this process, and from a real ingest process to an actor's own fetcher."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from actor.client.assembly import ModelFile, assemble
from actor.client.fetcher import ModelFetcher
from common.data import ModelVersion
from common.shared.slots import Blob, ModelSlots
from common.wire.channel import get_model
from common.wire.large_field import checksum
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import CHUNK_BYTES, UNARY_BYTES, version_from_pb, version_to_pb
from learner.ingest.model_answers import KEPT_MODELS, ModelAnswer, ModelAnswers
from learner.loop.server import LearnerServer
from learner.models.publisher import ModelPublisher
from tests.conftest import PATIENCE, MakeConfig, wait_for
from tests.learner.ingest.by_hand import SECONDS, Client, Talk

VERSION = ModelVersion(3, 20)


@pytest.mark.parametrize(
    ("n_bytes", "n_messages"),
    [(1, 1), (127, 1), (128, 1), (16384, 1), (UNARY_BYTES, 1), (UNARY_BYTES + 1, 5), (6 * CHUNK_BYTES - 1, 6)],
)
def test_messages_are_what_protobuf_would_serialise_and_hold_the_model(n_bytes: int, n_messages: int) -> None:
    data = os.urandom(n_bytes)
    answer = ModelAnswer.of(Blob(VERSION, memoryview(data), published_at=1.5))
    assert (answer.version, answer.n_bytes) == (VERSION, n_bytes)
    chunks = [pb.GetModelResponse.FromString(message) for message in answer.messages]
    assert len(chunks) == n_messages
    assert b"".join(chunk.data for chunk in chunks) == data
    offset = 0
    for message, chunk in zip(answer.messages, chunks, strict=True):
        assert len(message) == chunk.ByteSize()
        assert version_from_pb(chunk.version) == VERSION
        assert (chunk.total_bytes, chunk.checksum, chunk.offset) == (n_bytes, checksum(data), offset)
        offset += len(chunk.data)


def test_it_is_known_when_the_models_were_published_that_actors_read_from_the_slots(tmp_path: Path) -> None:
    publisher = ModelPublisher(tmp_path / "models", {"w": torch.zeros(1)}, incarnation=3)
    answers = ModelAnswers(ModelSlots(tmp_path / "models", publisher.blob_bytes, create=False), n_bases=0)
    published = []
    for opt_steps in (10, 20, 30):
        publisher.publish(opt_steps)
        published.append(publisher.slots.read(lambda blob: blob.published_at))
        if opt_steps != 20:
            answers.note_newest()
    before, _, newest = published
    found = [answers.published_at(ModelVersion(3, opt_steps)) for opt_steps in (10, 20, 30)]
    assert found == [before, newest, newest], "the second model was never noted, so it counts as the third"
    assert answers.published_at(ModelVersion(2, 99)) == before


def test_a_delta_is_computed_once_for_all_actors(tmp_path: Path) -> None:
    weights = torch.zeros(1000)
    publisher = ModelPublisher(tmp_path / "models", {"w": weights}, incarnation=3)
    answers = ModelAnswers(ModelSlots(tmp_path / "models", publisher.blob_bytes, create=False), n_bases=1)
    publisher.publish(10)
    answers.whole()
    weights[7] = 1.5
    publisher.publish(20)
    answer = answers.since(ModelVersion(3, 10))
    assert answer.n_bytes < answers.whole().n_bytes == publisher.blob_bytes
    assert answers.since(ModelVersion(3, 10)) is answer


def test_a_model_is_sent_whole_when_its_delta_is_no_smaller() -> None:
    old, new = (ModelAnswer.of(Blob(ModelVersion(3, n), memoryview(os.urandom(1000)), 1.5)) for n in (10, 20))
    assert new.since(old) is new


def test_the_delta_of_a_large_model_comes_in_chunks() -> None:
    base, model = bytes(6 * CHUNK_BYTES), os.urandom(5 * CHUNK_BYTES) + bytes(CHUNK_BYTES)
    old, new = (ModelAnswer.of(Blob(ModelVersion(3, n), memoryview(x), 1.5)) for n, x in ((10, base), (20, model)))
    chunks = [pb.GetModelResponse.FromString(message) for message in new.since(old).messages]
    assert [chunk.offset for chunk in chunks] == [n * CHUNK_BYTES for n in range(6)]
    assert {(chunk.total_bytes, chunk.checksum) for chunk in chunks} == {(len(model), checksum(model))}
    assert {version_from_pb(chunk.base) for chunk in chunks} == {ModelVersion(3, 10)}


def test_the_newest_model_is_sent_unless_the_actor_has_it(client: Client) -> None:
    file = assemble(get_model(client.channel)(pb.GetModelRequest(), timeout=SECONDS))
    assert file is not None
    assert file.model.version == ModelVersion(1, 0)
    have = pb.ModelVersion(incarnation=1, opt_steps=0)
    (answer,) = client.stub.GetModel(pb.GetModelRequest(have=have), timeout=SECONDS)
    assert answer.not_modified
    assert answer.data == b""


def test_an_acknowledgement_announces_a_newer_model(client: Client) -> None:
    client.join()
    talk = Talk(client.stub)
    assert talk.say(client.batch(1)).newest.opt_steps == 0
    client.server.learner.publish(40)
    assert talk.say(client.batch(2)).newest.opt_steps == 40


def test_a_large_model_comes_in_chunks(make_config: MakeConfig) -> None:
    units = {"target": "common.agents.dqn:DQN", "params": {"units": [1500, 1500]}}
    with LearnerServer(make_config(agent=units)) as server:
        messages = list(get_model(Client(server).channel)(pb.GetModelRequest(), timeout=SECONDS))
        file = assemble(messages)
    assert file is not None
    assert len(messages) == -(-len(file.data) // (1 << 20)) > 4
    assert file.model.params["layers.3.weight"].shape == (1500, 1500)


AGENT = {"target": "common.agents.dqn:DQN", "params": {"units": [64, 64]}}


Host = Callable[..., LearnerServer]


@pytest.fixture
def serve(make_config: MakeConfig) -> Iterator[Host]:
    """Starts a learner host whose agent is a small network."""
    servers: list[LearnerServer] = []

    def _serve(**trainer: object) -> LearnerServer:
        config = make_config(agent=AGENT, trainer=trainer, server={"grace_seconds": 0.1})
        servers.append(LearnerServer(config).__enter__())
        return servers[-1]

    yield _serve
    for server in servers:
        server.__exit__(None, None, None)


def publish(server: LearnerServer, opt_steps: int) -> bytes:
    """Change every parameter a little, as training does; the file of the new model."""
    with torch.no_grad():
        for tensor in server.learner.agent.model_info().values():
            tensor.mul_(1.0001)
    server.learner.publish(opt_steps)
    file = server.publisher.slots.read(lambda blob: bytes(blob.data))
    assert file is not None
    return file


def ask(client: Client, have: ModelVersion | None = None, *, takes_delta: bool = True) -> list[bytes]:
    request = pb.GetModelRequest(have=have and version_to_pb(have), takes_delta=takes_delta)
    return list(get_model(client.channel)(request, timeout=SECONDS))


@pytest.mark.parametrize("models", ["deltas", "bfloat16_deltas"])
def test_an_actor_follows_many_versions_bit_for_bit_at_less_than_half_their_bytes(serve: Host, models: str) -> None:
    server, stopped = serve(models=models), threading.Event()
    client = Client(server)
    fetcher = ModelFetcher(get_model(client.channel), stopped)
    fetcher.announce(ModelVersion(1, 0))
    fetcher.first(PATIENCE)
    whole = sent = server.control.model_bytes_sent
    assert whole == server.publisher.blob_bytes
    for opt_steps in range(10, 60, 10):
        file = publish(server, opt_steps)
        fetcher.announce(ModelVersion(1, opt_steps))
        wait_for(lambda: fetcher.newer_than(ModelVersion(1, opt_steps - 1)), "the newest model")  # noqa: B023
        assert fetcher._base is not None
        assert fetcher._base.data.tobytes() == file
    assert server.control.fetches == 6
    assert server.control.model_bytes_sent - sent < 5 * whole / 2
    stopped.set()
    fetcher.end(PATIENCE)
    client.channel.close()


def test_an_actor_gets_a_delta_only_if_it_asks_and_has_a_recent_model(serve: Host) -> None:
    server = serve(models="deltas")
    client, had = Client(server), list[ModelFile]()
    for opt_steps in range(1, KEPT_MODELS + 2):
        publish(server, opt_steps)
        had += filter(None, [assemble(ask(client))])
    file = publish(server, 40)
    gone, *kept = had
    assert len(kept) == KEPT_MODELS
    for base in kept:
        answer = ask(client, base.model.version)
        assert pb.GetModelResponse.FromString(answer[0]).base == version_to_pb(base.model.version)
        found = assemble(answer, base)
        assert found is not None
        assert found.data.tobytes() == file
    for answer in (
        ask(client),
        ask(client, gone.model.version),
        ask(client, ModelVersion(7, 20)),
        ask(client, kept[-1].model.version, takes_delta=False),
    ):
        found = assemble(answer)
        assert found is not None
        assert found.data.tobytes() == file


def test_without_deltas_the_model_comes_whole_even_if_the_actor_asks_for_a_delta(serve: Host) -> None:
    server = serve()
    client = Client(server)
    ask(client)
    file = publish(server, 10)
    found = assemble(ask(client, ModelVersion(1, 0)))
    assert found is not None
    assert found.data.tobytes() == file
