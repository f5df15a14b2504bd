"""Fetching a model of 1.7 million parameters: asked for, received, checked, decoded and loaded into the policy.

``alone``: one actor fetches each version first, so the server serialises it for this fetch. ``after another``: another
actor has fetched the version before. ``the trainer's slot``: a local actor of the learner host. ``a neighbour's slot``:
another worker of an actor host has fetched the version before; ``four workers``: all four have it, one after another.
``eight at once``: fetches per second of eight actors, which all fetch each version at the same time, decoded but not
loaded. Each actor has a separate connection, since the learner answers a connection that repeats itself only once a
second. The floor is a bare gRPC stream of the same bytes in messages of the same size. ``publish`` is the time that
training waits for a new version, with an idle GPU, and stands beside one copy of the same bytes to the host.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import grpc
import torch

from actor.client.assembly import MAX_MODEL_BYTES, ModelFile, assemble
from actor.client.shared_models import NeighbourModels, SharedModels, TrainerModels
from benchmarks.floor import MODEL_METHOD, floor_server
from benchmarks.report import RUNS, median, report, run_as_actors_do
from benchmarks.serving import serve_learner
from common.data import NO_MODEL, ModelVersion
from common.interfaces import Agent
from common.wire.channel import GetModel, get_model, watch_credentials
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import CHUNK_BYTES, CLIENT_OPTIONS
from learner.loop.server import LearnerServer, local_trust

FETCHES = 200
ACTORS = 8
SECONDS = 3.0
NEWEST = [NO_MODEL]
"""The version that was published last."""
AGENT = "agent={target: common.agents.dqn:DQN, params: {units: [1300, 1300]}}"


def nothing(_: int) -> None:
    """Do nothing before a call."""


def milliseconds(work: Callable[[int], object], before: Callable[[int], object]) -> list[float]:
    """The milliseconds of each of ``FETCHES`` calls, sorted; ``before`` runs ahead of each and does not count."""
    found = []
    for i in range(FETCHES):
        before(i)
        started = time.perf_counter()
        work(i)
        found.append((time.perf_counter() - started) * 1e3)
    return sorted(found)


def fetch(source: GetModel, agent: Agent | None = None) -> None:
    """Fetch the newest model, and load it into the agent if there is one."""
    file = assemble(source(pb.GetModelRequest(), timeout=10))
    assert file is not None
    if agent is not None:
        agent.sync_model(file.model)


def per_second(works: Sequence[Callable[[], object]], before: Callable[[int], object]) -> float:
    """Calls per second where each of some threads makes one call in a round; ``before`` runs ahead of each round."""
    rounds, spent = 0, 0.0
    with ThreadPoolExecutor(len(works)) as pool:
        while spent < SECONDS:
            before(rounds)
            started = time.perf_counter()
            for call in [pool.submit(work) for work in works]:
                call.result()
            spent += time.perf_counter() - started
            rounds += 1
    return rounds * len(works) / spent


@contextmanager
def floor_stream(n_bytes: int) -> Iterator[Callable[[], int]]:
    """A function that receives ``n_bytes`` from a floor server."""
    with floor_server() as floor, grpc.insecure_channel(floor.address) as channel:
        stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(MODEL_METHOD)
        sizes = b"%d %d" % (n_bytes, CHUNK_BYTES)
        yield lambda: sum(map(len, stream(sizes)))


def publish_next(server: LearnerServer, _: int = 0) -> None:
    """Publish the version after the newest."""
    NEWEST[0] = ModelVersion(server.control.incarnation, NEWEST[0].opt_steps + 1)
    server.learner.publish(NEWEST[0].opt_steps)


def fetch_shared(models: SharedModels, source: GetModel, agent: Agent | None = None) -> None:
    """Get the newest model as an actor does whose host shares models, and load it into the agent if there is one."""

    def fetch_over_grpc() -> ModelFile | None:
        return assemble(source(pb.GetModelRequest(), timeout=10))

    version = NEWEST[0]
    file = models.get(version, MAX_MODEL_BYTES, fetch_over_grpc)
    assert file is not None
    assert file.model.version == version
    if agent is not None:
        agent.sync_model(file.model)


def latency(server: LearnerServer, sources: Sequence[GetModel]) -> list[dict[str, object]]:
    """The latency of one fetch, with checksum, decoding and loading into the policy."""
    agent, run_id = server.learner.agent, server.run.dir.identity.run_id
    publish = partial(publish_next, server)

    def after_another(opt_steps: int) -> None:
        publish(opt_steps)
        fetch(sources[1])

    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        local = TrainerModels(server.run.dir.shared / "models", run_id)
        workers = [NeighbourModels(Path(directory), run_id, threading.Event(), candidates=False) for _ in range(4)]

        def fetch_for_each_worker(_: int) -> None:
            for worker in workers:
                fetch_shared(worker, sources[0], agent)

        def after_a_neighbour(opt_steps: int) -> None:
            publish(opt_steps)
            fetch_shared(workers[1], sources[1])

        ways: dict[str, tuple[Callable[[int], object], Callable[[int], object]]] = {
            "alone": (publish, lambda _: fetch(sources[0], agent)),
            "after another": (after_another, lambda _: fetch(sources[0], agent)),
            "the trainer's slot": (publish, lambda _: fetch_shared(local, sources[0], agent)),
            "a neighbour's slot": (after_a_neighbour, lambda _: fetch_shared(workers[0], sources[0], agent)),
            "four workers": (publish, fetch_for_each_worker),
        }
        return [measure(server, name, *way) for name, way in ways.items()]


def measure(
    server: LearnerServer, name: str, before: Callable[[int], object], work: Callable[[int], object]
) -> dict[str, object]:
    """A row of latencies beside the floor, which runs right after them."""
    runs = [milliseconds(work, before) for _ in range(RUNS)]
    p50, p99 = (statistics.median(run[int(q * FETCHES)] for run in runs) for q in (0.5, 0.99))
    with floor_stream(size_of(server)) as receive:
        floor = median(lambda: statistics.median(milliseconds(lambda _: receive(), nothing)))
    return {"fetch": name, "p50 ms": p50, "p99 ms": p99, "floor p50 ms": floor, "ratio": floor / p50}


def throughput(server: LearnerServer, sources: Sequence[GetModel]) -> dict[str, float]:
    """Fetches per second, and the cost of publishing."""
    fetches = median(lambda: per_second([partial(fetch, source) for source in sources], partial(publish_next, server)))
    with floor_stream(size_of(server)) as receive:
        floor = median(lambda: per_second([receive] * len(sources), nothing))
    return {"eight at once/s": fetches, "floor/s": floor, "ratio": fetches / floor, **publishing(server)}


def publishing(server: LearnerServer) -> dict[str, float]:
    """The time that training waits for ``publish``. On a GPU, a call writes the model that the call before copied."""
    device = server.config.trainer.device
    live, target = torch.zeros(size_of(server) // 4, device=device), torch.zeros(size_of(server) // 4)
    arrive = nothing if device == "cpu" else lambda _: torch.cuda.synchronize(device)
    publish = median(lambda: statistics.median(milliseconds(server.learner.publish, arrive)))
    copy = median(lambda: statistics.median(milliseconds(lambda _: target.copy_(live), nothing)))
    return {"publish ms": publish, "copy ms": copy, "publish/copy": publish / copy}


def size_of(server: LearnerServer) -> int:
    """Bytes of the model's parameters."""
    return sum(tensor.nbytes for tensor in server.learner.agent.model_info().values())


def open_own_channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """A channel with a separate connection, as each actor process has one; equal channels would share theirs."""
    options = (*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    if credentials is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, credentials, options=options)


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.model", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cuda: only the cost of publishing there")
    device = parser.parse_args().device
    if device != "cpu":
        with serve_learner("cartpole", AGENT, f"trainer.device={device}") as server:
            report("publish", f"{size_of(server) / 1e6:.1f} MB from {device}", [publishing(server)])
        return
    for encrypted in (False, True):
        with serve_learner("cartpole", AGENT, encrypted=encrypted) as server, ExitStack() as stack:
            credentials = watch_credentials(server.ingest.address, local_trust(server.config.server)).get()
            channels = [open_own_channel(server.ingest.address, credentials) for _ in range(ACTORS)]
            for channel in channels:
                stack.callback(channel.close)
            sources = [get_model(channel) for channel in channels]
            how = f"{size_of(server) / 1e6:.1f} MB, {'TLS and tokens' if encrypted else 'in the clear'}"
            report("model fetch", f"{how}; checked, loaded", latency(server, sources))
            report("models", how, [throughput(server, sources)])


if __name__ == "__main__":
    run_as_actors_do("benchmarks.model")
    main()
