"""Steps and models between an actor and a learner: here, in Ray, in TorchRL and in Reverb, in turns on the same work.

    python -m benchmarks.peers ray=PYTHON torchrl=PYTHON reverb=PYTHON     interpreters with these packages

They were measured with ray 2.60.0, torchrl 0.14.1, and dm-reverb 0.14.0 on tensorflow-cpu 2.15.1. ``--tables`` chooses.

``cartpole``, ``pong``: an actor plays a recorded CartPole step by step, or 64 lanes of a recorded Pong with one picture
for a step; each step is acknowledged and stored by a learner in another process. Ours is a whole ``actor-worker`` and
``learner-server`` with default settings, its run directory in TMPDIR (``in memory``: in /dev/shm), and also with
batches as large as the largest of its peers (``push.n_buffer``). Ray and TorchRL get batches of several sizes, four of
them on their way, in the host's shared memory; Reverb has two writers, which make their own chunks. Stored and pushed
are compared on all sides.

``host``, ``network``: fetching 1.7 million random parameters into the policy, a new model each time. On the learner's
host, ours, Ray and TorchRL share memory. In ``network`` all use sockets alone, over loopback: ours gRPC, TorchRL TCP,
Ray two nodes; and ``eight at once`` are eight further processes that all load each model at the same time. Ours have a
connection each, or share models as the workers of one ``actor-worker`` do; Ray's share their node's memory. ``ours to
it`` and ``large to it`` (ours with large batches) are the medians of the turns' ratios: above 1, ours is better.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch

from actor.client.assembly import MAX_MODEL_BYTES, ModelFile, assemble
from actor.client.shared_models import NeighbourModels, TrainerModels
from benchmarks import recordings
from benchmarks.ingest import part_of
from benchmarks.model import AGENT, fetch, fetch_shared, publish_next
from benchmarks.pairs import ENVIRONMENT, ROOT, Pair, acting
from benchmarks.peer_loop import LANES, PATIENCE, Clients, Job
from benchmarks.report import cpu_seconds, report, run_as_actors_do
from benchmarks.serving import serve_learner
from common.config.run_config import load_config
from common.data import NO_MODEL, ModelVersion
from common.interfaces import Agent
from common.parts import build_parts
from common.wire.channel import get_model, open_channel, watch_credentials
from common.wire.pb import crossborder_pb2 as pb
from learner.loop.server import local_trust

TURNS: Final = 5
SECONDS: Final = 3.0
FETCHES: Final = 50
ROUNDS: Final = 20
CLIENTS: Final = 8
WRITERS: Final = ("trajectory", "structured")
WAYS: Final[dict[str, dict[str, tuple[int | str, ...]]]] = {
    "cartpole": {"ray": (100, 1_000, 10_000), "torchrl": (100, 1_000, 10_000), "reverb": WRITERS},
    "pong": {"ray": (512, 4_096), "torchrl": (512, 4_096)},
}
"""The ways in which each peer sends steps: steps in a batch, or a writer. Reverb's writers take single steps."""
LARGEST: Final = {
    kind: max(way for ways in peers.values() for way in ways if isinstance(way, int)) for kind, peers in WAYS.items()
}
"""The steps of the peers' largest batches."""
PEERS: Final = tuple(WAYS["cartpole"])
TABLES: Final = {
    "cartpole": "CartPole step by step, acknowledged and stored",
    "pong": f"Pong, {LANES} lanes, acknowledged and stored",
    "host": "1.7 million parameters, loaded, on the learner's host",
    "network": "1.7 million parameters, loaded, over sockets",
}
Turn = Mapping[str, float]
Measures = Mapping[str, Callable[[], Turn]]


class Peer:
    """The actor of a peer, which answers questions; see ``benchmarks.peer_loop``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._asks, self._answers = process.stdin, process.stdout
        self._learner: list[int] = self._answer()["pids"]

    def _answer(self) -> dict[str, Any]:
        for line in self._answers:
            if line.startswith("ANSWER "):
                found: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
                return found
        raise SystemExit("expected the peer to answer, found that it has ended")

    def ask(self, **question: object) -> dict[str, Any]:
        self._asks.write(json.dumps(question) + "\n")
        self._asks.flush()
        return self._answer()

    def push(self, way: int | str) -> Turn:
        """Rates of steps, and processor time of both sides for a million."""
        before = sum(map(cpu_seconds, self._learner))
        found = self.ask(do="push", seconds=SECONDS, way=way)
        spent, million = sum(map(cpu_seconds, self._learner)) - before, found["steps"] / 1e6
        return {
            "steps/s": found["steps"] / found["seconds"],
            "actor CPU s/M": found["cpu"] / million,
            "learner CPU s/M": spent / million,
        }

    def fetch(self) -> Turn:
        """Latencies of fetches, and the actor's processor time."""
        found = self.ask(do="fetch", n=FETCHES)
        return latencies(found["milliseconds"], found["cpu"])

    def fetch_together(self) -> Turn:
        """The same, and the rate of all clients together."""
        return {**self.fetch(), "eight at once/s": self.ask(do="fetch together", rounds=ROUNDS)["per_second"]}


@contextmanager
def start_peer(name: str, python: str, job: Job) -> Iterator[Peer]:
    """Start a peer's actor and learner; they end with the context."""
    with subprocess.Popen(
        [python, "-m", f"benchmarks.{name}_peer", json.dumps(asdict(job))],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield Peer(process)  # The process ends when its standard input is closed, at the end of the block.


def push_ours(pair: Pair) -> Turn:
    """The rates of our actor, which is paused afterwards."""
    found = pair.measure(SECONDS)
    pair.pause()
    return {
        "steps/s": found["steps/s"],
        "actor CPU s/M": found["actor CPU s/M"],
        "learner CPU s/M": found["ingest CPU s/M"],
    }


def latencies(milliseconds: Sequence[float], cpu: float) -> Turn:
    """The quantiles of a turn."""
    ordered = sorted(milliseconds)
    p50, p99 = (ordered[int(q * len(ordered))] for q in (0.5, 0.99))
    return {"p50 ms": p50, "p99 ms": p99, "actor CPU ms": cpu * 1e3 / len(ordered)}


def fetch_ours(publish: Callable[[], object], get: Callable[[], object], clients: Clients | None = None) -> Turn:
    """Latencies of our fetches, and this process's processor time; with clients also their rate."""
    milliseconds, computed = [], 0.0
    for _ in range(FETCHES):
        publish()
        cpu, began = time.process_time(), time.perf_counter()
        get()
        milliseconds.append((time.perf_counter() - began) * 1e3)
        computed += time.process_time() - cpu
    found = latencies(milliseconds, computed)
    return found if clients is None else {**found, "eight at once/s": clients.rate(publish, ROUNDS)}


def compare(
    measures: Measures, figures: Sequence[str], turns: int, large: str | None = None
) -> list[dict[str, object]]:
    """The medians of each, and the ratios of ``figures`` of the first, and of ``large``; the first turn does not count.

    A ratio above 1 is better.
    """
    found: dict[str, list[Turn]] = {name: [] for name in measures}
    loads = []
    for _ in range(1 + turns):
        for name, measure in measures.items():
            found[name].append(measure())
        loads.append(os.getloadavg()[0])
    bases = {"ours": next(iter(found))} | ({} if large is None else {"large": large})
    rows: list[dict[str, object]] = []
    for name, each in found.items():
        row: dict[str, object] = {"system": name}
        row |= {key: statistics.median(turn[key] for turn in each[1:]) for key in each[0]}
        for (label, base), figure in product(bases.items(), figures):
            turns_of_both = zip(each[1:], found[base][1:], strict=True)
            ratio = statistics.median(turn[figure] / own[figure] for turn, own in turns_of_both)
            row[f"{label} to it, {figure}"] = ratio if figure.endswith("ms") else 1 / ratio
        rows.append({**row, "load": statistics.median(loads)})
    return rows


def compare_steps(pythons: Mapping[str, str], directory: Path, kind: str, turns: int) -> list[dict[str, object]]:
    """The table of steps of a recording."""
    part = part_of(directory, kind, LANES if kind == "pong" else 1)
    most = LARGEST[kind]
    large = f"crossborder, batches of {most:,}"
    with ExitStack() as stack:
        pairs, measures = [], {}
        for name, more, where in (
            ("crossborder", {}, None),
            ("crossborder, in memory", {}, "/dev/shm"),  # noqa: S108
            (large, {"push": {"n_buffer": most}}, None),
        ):
            pairs.append(stack.enter_context(acting({**part, **more}, where=where)))
            pairs[-1].pause()
            measures[name] = partial(push_ours, pairs[-1])
        for name in filter(pythons.__contains__, WAYS[kind]):
            peer = stack.enter_context(start_peer(name, pythons[name], Job(str(directory), kind)))
            for way in WAYS[kind][name]:
                label = f"{name}, batches of {way:,}" if isinstance(way, int) else f"{name}, {way} writer"
                measures[label] = partial(peer.push, way)
        rows = compare(measures, ["steps/s"], turns, large)
        for pair in pairs:
            pair.compare()
    return rows


def build_policy() -> Agent:
    """Build the policy of one of our clients."""
    torch.set_num_threads(1)
    return build_parts(load_config(Path("configs/cartpole.yaml"), (AGENT,)), seed=0).agent


def join_ours(address: str, _: int) -> Callable[[], object]:
    """Connect a further client of ours, with a policy."""
    agent, channel = build_policy(), open_channel(address, None)
    return lambda: fetch(get_model(channel), agent)  # Without a reference the channel would be closed.


def join_ours_shared(directory: Path, address: str, _: int) -> Callable[[], object]:
    """Connect one worker of a host; its workers share models in ``directory``."""
    agent, channel, held = build_policy(), open_channel(address, None), NO_MODEL
    models = NeighbourModels(directory, "peers", threading.Event())

    def fetch_for_all() -> ModelFile | None:
        return assemble(get_model(channel)(pb.GetModelRequest(), timeout=PATIENCE))

    def load() -> None:
        nonlocal held
        file = models.get(ModelVersion(max(1, held.incarnation), held.opt_steps + 1), MAX_MODEL_BYTES, fetch_for_all)
        assert file is not None
        held = file.model.version
        agent.sync_model(file.model)

    return load


def compare_models(pythons: Mapping[str, str], directory: Path, kind: str, turns: int) -> list[dict[str, object]]:
    """The table of models: on the learner's host, or over sockets."""
    has_network = kind == "network"
    n = CLIENTS if has_network else 0
    with ExitStack() as stack:
        clients = stack.enter_context(closing(Clients(n, join_ours)))
        share = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        workers = stack.enter_context(closing(Clients(n, partial(join_ours_shared, share))))
        server = stack.enter_context(serve_learner("cartpole", AGENT))
        clients.connect(server.ingest.address)
        workers.connect(server.ingest.address)
        credentials = watch_credentials(server.ingest.address, local_trust(server.config.server)).get()
        channel = stack.enter_context(open_channel(server.ingest.address, credentials))
        source, agent, publish = get_model(channel), server.learner.agent, partial(publish_next, server)
        local = TrainerModels(server.run.dir.shared / "models", server.run.dir.identity.run_id)
        get = partial(fetch, source, agent)
        ours: Measures = {
            "crossborder": partial(fetch_ours, publish, get, clients),
            "crossborder, eight workers of one host": partial(fetch_ours, publish, get, workers),
        }
        if not has_network:
            ours = {"crossborder": partial(fetch_ours, publish, partial(fetch_shared, local, source, agent))}
        job = Job(str(directory), has_network=has_network, clients=n)
        peers = {name: stack.enter_context(start_peer(name, python, job)) for name, python in pythons.items()}
        theirs = {name: peer.fetch_together if has_network else peer.fetch for name, peer in peers.items()}
        figures = ["p50 ms", "eight at once/s"] if has_network else ["p50 ms"]
        return compare({**ours, **theirs}, figures, turns)


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.peers", description=__doc__)
    parser.add_argument("peers", nargs="+", metavar="NAME=PYTHON", help=f"NAME is one of {', '.join(PEERS)}")
    parser.add_argument("--recordings", type=Path, default=Path("/tmp/recordings"), help="missing ones are made")  # noqa: S108
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--turns", type=int, default=TURNS)
    given = parser.parse_args()
    pythons = dict(each.split("=", 1) for each in given.peers if "=" in each)
    if len(pythons) < len(given.peers) or not pythons.keys() <= set(PEERS):
        parser.error(f"expected NAME=PYTHON with a NAME of {', '.join(PEERS)}, found {' '.join(given.peers)}")
    directory = given.recordings.resolve()
    recordings.ensure(directory)
    for table in given.tables:
        compare_table = compare_steps if table in WAYS else compare_models
        report(table, TABLES[table], compare_table(pythons, directory, table, given.turns), given.turns)


if __name__ == "__main__":
    run_as_actors_do("benchmarks.peers")
    main()
