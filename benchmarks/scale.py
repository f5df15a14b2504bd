"""How many actors one learner host can take: 1 to 1,024 light ones in a few processes, and no training.

``ten a second``: every actor pushes ten batches of 64 CartPole steps a second, as from an environment; ``one a
second``, ``two a second`` and ``five in two seconds`` are slower environments; ``flat out``: as fast as
acknowledgements come, four batches on their way. ``p50`` and ``p99`` are from handing a batch to gRPC to its
acknowledgement, as the actor sees it; flat out, a batch mostly waits for others. The floor: the same actors and
messages at a gRPC server that only acknowledges. ``cores``, ``µs/message`` and ``kB/actor`` are ingest's use of CPU,
and of memory beyond its memory before the actors came. ``fleet cores`` are the cores that the benchmark's actors use on
the same machine, and ``load`` is its load average.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Final

from benchmarks.floor import floor_server
from benchmarks.light_fleet import ROWS, Fleet, Shard, median_of, own_kilobytes, push_together
from benchmarks.report import RUNS, report
from benchmarks.serving import serve_learner

SECONDS: Final = 4.0
INTERVALS: Final = {
    "one a second": 1.0,
    "two a second": 0.5,
    "five in two seconds": 0.4,
    "ten a second": 0.1,
    "flat out": 0.0,
}
"""Seconds from batch to batch, at least."""
PACES: Final = {1024: ("one a second", "two a second", "five in two seconds")}
"""By number of actors; ten batches a second of 1,024 actors would take four cores."""
USUAL_PACES: Final = ("ten a second", "flat out")


def settings_for(actors: int) -> tuple[str, ...]:
    """Settings of a learner host that takes this many actors from one address."""
    most = max(256, actors)
    return (f"server.max_actors={most}", f"server.max_address_actors={most}")


def figures(fleet: Fleet, pace: str, pid: int) -> dict[str, float]:
    """Medians over several pushes, after one that does not count; the CPU time is that of the receiving process."""
    runs = []
    for _ in range(1 + RUNS):
        ((pushed, spent),) = push_together([Shard(fleet, pid)], INTERVALS[pace], SECONDS)
        runs.append(
            {
                "messages/s": pushed.per_second,
                "p50 ms": pushed.percentile(50),
                "p99 ms": pushed.percentile(99),
                "cores": spent / pushed.seconds,
                "µs/message": spent / len(pushed.milliseconds) * 1e6,
                "fleet cores": pushed.cpu_seconds / pushed.seconds,
                "load": os.getloadavg()[0],
            }
        )
    return median_of(runs)


def measure(actors: int) -> list[dict[str, object]]:
    """One row for each pace."""
    paces = PACES.get(actors, USUAL_PACES)
    with serve_learner("cartpole", *settings_for(actors)) as server:
        address, pid = server.ingest.address, server.ingest.pid
        before = own_kilobytes(pid)
        with Fleet(address, actors) as fleet:
            ours = {pace: figures(fleet, pace, pid) for pace in paces}
            memory = (own_kilobytes(pid) - before) / actors
        stored = server.buffer.inserted
        if stored != ROWS * fleet.acknowledged:
            raise SystemExit(f"expected {ROWS * fleet.acknowledged} steps in the replay, found {stored}")
        with floor_server() as floor, Fleet(address, actors, floor.address) as fleet:
            floors = {pace: figures(fleet, pace, floor.pid) for pace in paces}
    return [
        {
            "actors": actors,
            "pace": pace,
            "steps/s": ROWS * ours[pace]["messages/s"],
            **ours[pace],
            "kB/actor": memory,
            **{f"floor {name}": floors[pace][name] for name in ("messages/s", "p50 ms", "p99 ms", "µs/message")},
            "ratio": ours[pace]["messages/s"] / floors[pace]["messages/s"],
        }
        for pace in paces
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("benchmarks.scale", description=__doc__)
    parser.add_argument("--actors", type=int, nargs="*", default=[1, 4, 16, 64, 256, 1024])
    rows = [row for actors in parser.parse_args(arguments).actors for row in measure(actors)]
    report("scale", f"batches of {ROWS}, acknowledged, exactly once; the actors on the same cores", rows)


if __name__ == "__main__":
    main()
