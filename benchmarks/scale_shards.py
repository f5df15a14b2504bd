"""The cost of a step for a shard's ingest process, with 1, 2 and 4 shards on one machine that take steps together.

Each shard is a learner host with its own light actors (``benchmarks.light_actors``); its agent is idle. Every shard
gets the same rate of steps, whose sum the machine can carry. A machine with fewer cores than shards can show no
speed-up, so the figure is processor time for each step: ``CPU s/million`` of a shard's ingest process, the mean over
the shards; ``worst`` is the highest of the shards, and ``to one shard`` the mean beside that of one shard. The actors'
own processor time stands apart.
"""

from __future__ import annotations

import os
import statistics
from contextlib import ExitStack
from typing import Final

from benchmarks.light_fleet import ROWS, Fleet, Shard, median_of, push_together
from benchmarks.report import report
from benchmarks.serving import serve_learner

SHARDS: Final = (1, 2, 4)
ACTORS: Final = 16
"""Of each shard."""
INTERVAL: Final = 0.1
"""Seconds between two batches of an actor: 160 messages a second to each shard."""
SECONDS: Final = 6.0
RUNS: Final = 5


def measure(n_shards: int) -> dict[str, float]:
    """Medians over several pushes, after one that does not count."""
    with ExitStack() as stack:
        servers = [stack.enter_context(serve_learner("cartpole")) for _ in range(n_shards)]
        fleets = [stack.enter_context(Fleet(each.ingest.address, ACTORS, processes=1)) for each in servers]
        shards = [Shard(fleet, each.ingest.pid) for fleet, each in zip(fleets, servers, strict=True)]
        runs = [_push(shards) for _ in range(1 + RUNS)]
        for fleet, server in zip(fleets, servers, strict=True):
            if server.buffer.inserted != ROWS * fleet.acknowledged:
                raise SystemExit(f"expected {ROWS * fleet.acknowledged} steps, found {server.buffer.inserted}")
    return median_of(runs)


def _push(shards: list[Shard]) -> dict[str, float]:
    measured = push_together(shards, INTERVAL, SECONDS)
    steps = [ROWS * len(pushed.milliseconds) for pushed, _ in measured]
    costs = [1e6 * spent / count for (_, spent), count in zip(measured, steps, strict=True)]
    return {
        "steps/s of each": statistics.mean(ROWS * pushed.per_second for pushed, _ in measured),
        "CPU s/million": statistics.mean(costs),
        "worst": max(costs),
        "actors' CPU s/million": 1e6 * sum(pushed.cpu_seconds for pushed, _ in measured) / sum(steps),
        "p99 ms": max(pushed.percentile(99) for pushed, _ in measured),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    measured = {n: measure(n) for n in SHARDS}
    alone = measured[1]["CPU s/million"]
    rows = [{"shards": n, **its, "to one shard": its["CPU s/million"] / alone} for n, its in measured.items()]
    report("scale_shards", f"batches of {ROWS}, acknowledged, exactly once; cost of a step, no speed-up", rows, RUNS)


if __name__ == "__main__":
    main()
