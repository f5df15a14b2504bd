"""Models as what changed since those before, from a real ingest process to an actor's own fetcher and by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from actor.client.assembly import ModelFile, assemble
from actor.client.fetcher import ModelFetcher
from common.data import ModelVersion
from common.wire.channel import get_model
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import version_to_pb
from learner.loop.server import LearnerServer
from learner.models.slots import ModelSlots
from tests.conftest import PATIENCE, MakeConfig, wait_for
from tests.learner.ingest.test_service import SECONDS, Client

AGENT = {"target": "common.agents.dqn:DQN", "params": {"units": [64, 64]}}
Host = Callable[..., LearnerServer]


@pytest.fixture
def serve(make_config: MakeConfig) -> Iterator[Host]:
    """Starts a learner host whose agent is a small network."""
    servers: list[LearnerServer] = []

    def _serve(**trainer: object) -> LearnerServer:
        config = make_config(agent=AGENT, trainer=trainer, server={"grace_seconds": 0.5})
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
    slots = ModelSlots(server.run.dir.shared / "models", server.publisher.blob_bytes, create=False)
    file = slots.read(lambda blob: bytes(blob.data))
    assert file is not None
    return file


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_actor_follows_many_versions_bit_for_bit_at_less_than_half_their_bytes(serve: Host, precision: str) -> None:
    server, stopped = serve(model_deltas=1, model_precision=precision), threading.Event()
    client = Client(server)
    fetcher = ModelFetcher(get_model(client.channel), stopped)
    fetcher.announce(ModelVersion(1, 0))
    fetcher.first(PATIENCE)
    whole, sent = server.publisher.blob_bytes, server.control.model_bytes_sent
    assert sent == whole
    for opt_steps in range(10, 60, 10):
        file = publish(server, opt_steps)
        fetcher.announce(ModelVersion(1, opt_steps))
        wait_for(lambda: fetcher.newer_than(ModelVersion(1, opt_steps - 1)), "the newest model")  # noqa: B023
        assert fetcher._base is not None
        assert fetcher._base.data.tobytes() == file
    assert server.control.fetches == 6
    assert server.control.model_bytes_sent - sent < 5 * whole / 2
    stopped.set()
    fetcher.join(PATIENCE)
    client.channel.close()


def ask(client: Client, have: ModelVersion | None = None, *, takes_delta: bool = True) -> list[bytes]:
    request = pb.GetModelRequest(have=have and version_to_pb(have), takes_delta=takes_delta)
    return list(get_model(client.channel)(request, timeout=SECONDS))


def test_the_model_comes_whole_unless_its_actor_asks_and_has_one_of_the_last(serve: Host) -> None:
    server = serve(model_deltas=2)
    client, had = Client(server), list[ModelFile]()
    for opt_steps in (10, 20, 30):
        publish(server, opt_steps)
        had += filter(None, [assemble(ask(client))])
    file = publish(server, 40)
    gone, *kept = had
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


def test_without_the_setting_it_comes_whole_also_to_who_asks_for_what_changed(serve: Host) -> None:
    server = serve()
    client = Client(server)
    ask(client)
    file = publish(server, 10)
    found = assemble(ask(client, ModelVersion(1, 0)))
    assert found is not None
    assert found.data.tobytes() == file
