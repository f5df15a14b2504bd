"""Fetching a model of 1.7 million parameters: asked for, received, checked, decoded and loaded into the policy.

``alone`` one actor fetches each version first, so that it is serialised for it; ``after another`` it was already;
``eight at once`` is fetches per second of eight actors, decoded but not loaded. The floor: the same bytes in the same
pieces on a gRPC stream, received and forgotten. ``publish`` is what training waits for at each new version, beside one
copy of the same bytes; ``not modified`` how often a second an actor could ask in vain, which none does.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import torch

from actor.client.channel import open_channel
from actor.client.fetcher import assemble
from benchmarks.floor import MODEL_METHOD, floor_server
from benchmarks.ingest import ingest
from benchmarks.report import RUNS, median, report
from common.child import KEEP_BUFFERS
from common.data import ModelVersion
from common.interfaces import Agent
from common.pb import crossborder_pb2 as pb
from common.pb import crossborder_pb2_grpc as pb_grpc
from common.rpc import CHUNK_BYTES, version_to_pb
from learner.server import LearnerServer

FETCHES = 200
ACTORS = 8
SECONDS = 3.0
AGENT = "agent={target: common.agents.dqn:DQN, params: {units: [1300, 1300]}}"


def milliseconds(work: Callable[[int], object], before: Callable[[int], object]) -> list[float]:
    """Of each of many calls, sorted; what has to be done before it does not count."""
    found = []
    for i in range(FETCHES):
        before(i)
        started = time.perf_counter()
        work(i)
        found.append((time.perf_counter() - started) * 1e3)
    return sorted(found)


def fetch(stub: pb_grpc.LearnerServiceStub, agent: Agent | None = None, have: ModelVersion | None = None) -> bool:
    """Whether there was a model."""
    request = pb.GetModelRequest(have=None if have is None else version_to_pb(have))
    model = assemble(stub.GetModel(request, timeout=10))
    if model is not None and agent is not None:
        agent.sync_model(model)
    return model is not None


def per_second(work: Callable[[], object], threads: int = 1) -> float:
    """Calls per second, of so many threads together."""
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
    """Receives so many bytes from a server that has nothing to do but send them."""
    with floor_server() as floor, grpc.insecure_channel(floor.address) as channel:
        stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(MODEL_METHOD)
        sizes = b"%d %d" % (n_bytes, CHUNK_BYTES)
        yield lambda: sum(map(len, stream(sizes)))


def publishing(server: LearnerServer, n_bytes: int) -> dict[str, float]:
    """Milliseconds of one publication, and of a copy."""
    source, target = torch.zeros(n_bytes // 4), torch.zeros(n_bytes // 4)
    publish = median(lambda: statistics.median(milliseconds(server.learner._publish, lambda _: None)))
    copy = median(lambda: statistics.median(milliseconds(lambda _: target.copy_(source), lambda _: None)))
    return {"publish ms": publish, "copy ms": copy}


def main() -> None:
    with ingest("cartpole", 64, AGENT) as server:
        publish, agent = server.learner._publish, server.learner.agent
        channels = [open_channel(server.ingest.address, None) for _ in range(ACTORS)]
        stubs = [pb_grpc.LearnerServiceStub(channel) for channel in channels]
        rows = []
        n_bytes = sum(tensor.nbytes for tensor in agent.model_info().values())
        befores: dict[str, Callable[[int], object]] = {
            "alone": publish,
            "after another": lambda i: (publish(i), fetch(stubs[1])),
        }
        for name, before in befores.items():
            runs = [milliseconds(lambda _: fetch(stubs[0], agent), before) for _ in range(RUNS)]
            with floor_stream(n_bytes) as receive:
                floor = [milliseconds(lambda _: receive(), lambda _: None) for _ in range(RUNS)]
            p50, p99 = (statistics.median(run[int(q * FETCHES)] for run in runs) for q in (0.5, 0.99))
            floor_p50 = statistics.median(run[FETCHES // 2] for run in floor)
            rows.append(
                {"fetch": name, "p50 ms": p50, "p99 ms": p99, "floor p50 ms": floor_p50, "ratio": floor_p50 / p50}
            )
        report("model fetch", f"{n_bytes / 1e6:.1f} MB, hash checked, loaded", rows)
        own = threading.local()

        def fetch_as_one_of_many() -> None:
            if not hasattr(own, "stub"):
                own.stub = stubs.pop()
            fetch(own.stub)

        unmodified = ModelVersion(server.control.incarnation, FETCHES - 1)
        asked = median(lambda: per_second(lambda: fetch(stubs[0], have=unmodified)))
        figures = publishing(server, n_bytes)
        fetches = per_second(fetch_as_one_of_many, ACTORS)
        with floor_stream(n_bytes) as receive:
            floor_fetches = per_second(receive, ACTORS)
        report(
            "models",
            f"{n_bytes / 1e6:.1f} MB",
            [
                {
                    "eight at once/s": fetches,
                    "floor/s": floor_fetches,
                    "ratio": fetches / floor_fetches,
                    **figures,
                    "publish/copy": figures["publish ms"] / figures["copy ms"],
                    "not modified/s": asked,
                }
            ],
        )
        for channel in channels:
            channel.close()


if __name__ == "__main__":
    if not KEEP_BUFFERS.keys() <= os.environ.keys():  # As an actor runs.
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.model"], {**KEEP_BUFFERS, **os.environ})  # noqa: S606
    main()
