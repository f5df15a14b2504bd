"""Fetching a model of 1.7 million parameters: asked for, received, checked, decoded and loaded into the policy.

``alone``: one actor fetches each version first, so the server serialises it for this fetch. ``after another``: another
actor has fetched the version before. ``eight at once``: fetches per second of eight actors, decoded but not loaded. The
floor is a gRPC stream of the same bytes in messages of the same size. ``publish`` is the time that training waits for a
new version, with an idle GPU, and stands beside one copy of the same bytes to the host. ``not modified`` is how often a
second an actor can ask when there is no new version; real actors ask far less often.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import grpc
import torch

from actor.client.assembly import assemble
from benchmarks.floor import MODEL_METHOD, floor_server
from benchmarks.ingest import ingest
from benchmarks.report import RUNS, median, report, run_as_actors_do
from common.data import ModelVersion
from common.interfaces import Agent
from common.wire.channel import GetModel, get_model, open_channel, watch_credentials
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import CHUNK_BYTES, version_to_pb
from learner.loop.server import LearnerServer, local_trust

FETCHES = 200
ACTORS = 8
SECONDS = 3.0
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


def fetch(source: GetModel, agent: Agent | None = None, have: ModelVersion | None = None) -> bool:
    """Fetch a model, and load it into the agent if there is one; whether the server had a newer model."""
    request = pb.GetModelRequest(have=None if have is None else version_to_pb(have))
    file = assemble(source(request, timeout=10))
    if file is not None and agent is not None:
        agent.sync_model(file.model)
    return file is not None


def per_second(work: Callable[[], object], threads: int = 1) -> float:
    """Calls per second of all threads together."""
    end = time.perf_counter() + SECONDS

    def count(_: int) -> int:
        calls = 0
        while time.perf_counter() < end:
            work()
            calls += 1
        return calls

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(count, range(threads))) / SECONDS


@contextmanager
def floor_stream(n_bytes: int) -> Iterator[Callable[[], int]]:
    """A function that receives ``n_bytes`` from a floor server."""
    with floor_server() as floor, grpc.insecure_channel(floor.address) as channel:
        stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(MODEL_METHOD)
        sizes = b"%d %d" % (n_bytes, CHUNK_BYTES)
        yield lambda: sum(map(len, stream(sizes)))


def latency(server: LearnerServer, sources: Sequence[GetModel]) -> list[dict[str, object]]:
    """The latency of one fetch, with checksum, decoding and loading into the policy."""
    publish, agent = server.learner.publish, server.learner.agent

    def after_another(opt_steps: int) -> None:
        publish(opt_steps)
        fetch(sources[1])

    befores: dict[str, Callable[[int], object]] = {"alone": publish, "after another": after_another}
    rows: list[dict[str, object]] = []
    for name, before in befores.items():
        runs = [milliseconds(lambda _: fetch(sources[0], agent), before) for _ in range(RUNS)]
        p50, p99 = (statistics.median(run[int(q * FETCHES)] for run in runs) for q in (0.5, 0.99))
        with floor_stream(size_of(server)) as receive:
            floor = median(lambda receive=receive: statistics.median(milliseconds(lambda _: receive(), nothing)))  # type: ignore[misc]
        rows.append({"fetch": name, "p50 ms": p50, "p99 ms": p99, "floor p50 ms": floor, "ratio": floor / p50})
    return rows


def throughput(server: LearnerServer, sources: Sequence[GetModel]) -> dict[str, float]:
    """Fetches per second, and the cost of publishing."""
    waiting, own = list(sources), threading.local()

    def fetch_as_one_of_many() -> None:
        if not hasattr(own, "source"):
            own.source = waiting.pop()
        fetch(own.source)

    fetches = per_second(fetch_as_one_of_many, ACTORS)
    with floor_stream(size_of(server)) as receive:
        floor = per_second(receive, ACTORS)
    newest = ModelVersion(server.control.incarnation, FETCHES - 1)
    return {
        "eight at once/s": fetches,
        "floor/s": floor,
        "ratio": fetches / floor,
        **publishing(server),
        "not modified/s": median(lambda: per_second(lambda: fetch(sources[0], have=newest))),
    }


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


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.model", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cuda: only the cost of publishing there")
    device = parser.parse_args().device
    if device != "cpu":
        with ingest("cartpole", 64, AGENT, f"trainer.device={device}") as server:
            report("publish", f"{size_of(server) / 1e6:.1f} MB from {device}", [publishing(server)])
        return
    for encrypted in (False, True):
        with ingest("cartpole", 64, AGENT, encrypted=encrypted) as server, ExitStack() as stack:
            credentials = watch_credentials(server.ingest.address, local_trust(server.config.server)).get()
            channels = [open_channel(server.ingest.address, credentials) for _ in range(ACTORS)]
            for channel in channels:
                stack.callback(channel.close)
            sources = [get_model(channel) for channel in channels]
            how = f"{size_of(server) / 1e6:.1f} MB, {'TLS and tokens' if encrypted else 'in the clear'}"
            report("model fetch", f"{how}; checked, loaded", latency(server, sources))
            report("models", how, [throughput(server, sources)])


if __name__ == "__main__":
    run_as_actors_do("benchmarks.model")
    main()
