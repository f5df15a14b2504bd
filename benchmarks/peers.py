"""Steps and models between an actor and a learner: here, in Ray, in TorchRL and in Reverb, in turns on the same work.

    python -m benchmarks.peers ray=PYTHON torchrl=PYTHON reverb=PYTHON     interpreters with these packages

They were measured with ray 2.60.0, torchrl 0.14.1, and dm-reverb 0.14.0 on tensorflow-cpu 2.15.1.

``steps``: an actor plays a recorded CartPole step by step; each step is acknowledged and stored by a learner in another
process. Ours is a whole ``actor-worker`` and ``learner-server`` with default settings. Ray and TorchRL get batches of
100 steps, four of them on their way, as many as our defaults; Reverb's writer makes its own chunks. Stored and pushed
are compared on all sides. ``models``: fetching 1.7 million parameters into the policy, a new model each time, over
loopback; ours over gRPC, and from the learner host's shared memory. ``ours to it`` is the median of the turns' ratios:
above 1, ours is better.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from actor.client.shared_models import TrainerModels
from benchmarks import recordings
from benchmarks.ingest import part_of
from benchmarks.model import AGENT, fetch, fetch_shared, publish_next
from benchmarks.pairs import ENVIRONMENT, ROOT, Pair, acting
from benchmarks.report import cpu_seconds, report, run_as_actors_do
from benchmarks.serving import serve_learner
from common.wire.channel import get_model, open_channel, watch_credentials
from learner.loop.server import local_trust

PEERS: Final = ("ray", "torchrl", "reverb")
TURNS: Final = 5
SECONDS: Final = 3.0
FETCHES: Final = 50
Turn = Mapping[str, float]


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

    def push(self) -> Turn:
        """Rates of steps, and processor time of both sides for a million."""
        before = sum(map(cpu_seconds, self._learner))
        found = self.ask(do="push", seconds=SECONDS)
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


@contextmanager
def start_peer(name: str, python: str, directory: Path) -> Iterator[Peer]:
    """Start a peer's actor and learner; they end with the context."""
    with subprocess.Popen(
        [python, "-m", f"benchmarks.{name}_peer", str(directory)],
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


def fetch_ours(publish: Callable[[], object], get: Callable[[], object]) -> Turn:
    """Latencies of our fetches, and this process's processor time."""
    milliseconds, computed = [], 0.0
    for _ in range(FETCHES):
        publish()
        cpu, began = time.process_time(), time.perf_counter()
        get()
        milliseconds.append((time.perf_counter() - began) * 1e3)
        computed += time.process_time() - cpu
    return latencies(milliseconds, computed)


def compare(measures: Mapping[str, Callable[[], Turn]], ours: str, figure: str, turns: int) -> list[dict[str, object]]:
    """The medians of each, and how often ``figure`` of ``ours`` is as good; the first turn does not count."""
    found: dict[str, list[Turn]] = {name: [] for name in measures}
    loads = []
    for _ in range(1 + turns):
        for name, measure in measures.items():
            found[name].append(measure())
        loads.append(os.getloadavg()[0])
    rows: list[dict[str, object]] = []
    for name, each in found.items():
        medians = {key: statistics.median(turn[key] for turn in each[1:]) for key in each[0]}
        ratios = [turn[figure] / own[figure] for turn, own in zip(each[1:], found[ours][1:], strict=True)]
        ratio = statistics.median(ratios)
        better = ratio if figure.endswith("ms") else 1 / ratio
        rows.append({"system": name, **medians, "ours to it": better, "load": statistics.median(loads)})
    return rows


def compare_steps(peers: Mapping[str, Peer], directory: Path, turns: int) -> list[dict[str, object]]:
    """The table of steps."""
    with acting(part_of(directory, "cartpole", 1)) as pair:
        pair.pause()
        measures = {"crossborder": partial(push_ours, pair)} | {name: peer.push for name, peer in peers.items()}
        rows = compare(measures, "crossborder", "steps/s", turns)
        pair.compare()
    return rows


def compare_models(peers: Mapping[str, Peer], turns: int) -> list[dict[str, object]]:
    """The table of models."""
    with serve_learner("cartpole", AGENT) as server:
        credentials = watch_credentials(server.ingest.address, local_trust(server.config.server)).get()
        with open_channel(server.ingest.address, credentials) as channel:
            source, agent, publish = get_model(channel), server.learner.agent, partial(publish_next, server)
            local = TrainerModels(server.run.dir.shared / "models", server.run.dir.identity.run_id)
            measures = {
                "crossborder": partial(fetch_ours, publish, partial(fetch, source, agent)),
                "crossborder, shared": partial(fetch_ours, publish, partial(fetch_shared, local, source, agent)),
            } | {name: peer.fetch for name, peer in peers.items()}
            return compare(measures, "crossborder", "p50 ms", turns)


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.peers", description=__doc__)
    parser.add_argument("peers", nargs="+", metavar="NAME=PYTHON", help=f"NAME is one of {', '.join(PEERS)}")
    parser.add_argument("--recordings", type=Path, default=Path("/tmp/recordings"), help="missing ones are made")  # noqa: S108
    parser.add_argument("--turns", type=int, default=TURNS)
    given = parser.parse_args()
    pythons = dict(each.split("=", 1) for each in given.peers if "=" in each)
    if len(pythons) < len(given.peers) or not pythons.keys() <= set(PEERS):
        parser.error(f"expected NAME=PYTHON with a NAME of {', '.join(PEERS)}, found {' '.join(given.peers)}")
    directory = given.recordings.resolve()
    recordings.ensure(directory)
    with ExitStack() as stack:
        peers = {name: stack.enter_context(start_peer(name, python, directory)) for name, python in pythons.items()}
        report("steps", "CartPole, acknowledged and stored", compare_steps(peers, directory, given.turns), given.turns)
        report("models", "1.7 million parameters, loaded", compare_models(peers, given.turns), given.turns)


if __name__ == "__main__":
    run_as_actors_do("benchmarks.peers")
    main()
