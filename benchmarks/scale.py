"""How many actors one learner host can take: 1 to 256 light ones, several in each of a few processes, and no training.

``steady``: every actor pushes ten batches of 64 CartPole steps a second, as from an environment; ``flat out``:
as fast as acknowledgements come, four batches on their way. ``p50`` and ``p99`` are from handing a batch to gRPC to its
acknowledgement, as the actor sees it; flat out, a batch mostly waits for others. The floor: the same actors and
messages at a gRPC server that only acknowledges. ``cores``, ``µs/message`` and ``kB/actor`` are what ingest needs: of
CPU, and of memory beyond what it had before they came.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from benchmarks.floor import floor_server
from benchmarks.ingest import ingest
from benchmarks.light_actors import ROWS
from benchmarks.report import RUNS, cpu_seconds, report
from common.process.child import Child

ACTORS: Final = (1, 4, 16, 64, 256)
PROCESSES: Final = 4
SECONDS: Final = 2.0
PACES: Final = {"steady": 0.1, "flat out": 0.0}
"""Seconds from batch to batch, at least."""
PATIENCE: Final = 60.0


@dataclass(frozen=True)
class Pushed:
    """The measurements of one push: the milliseconds of each batch, sorted, and the seconds of all together."""

    milliseconds: list[float]
    seconds: float

    @property
    def per_second(self) -> float:
        return len(self.milliseconds) / self.seconds

    def percentile(self, percent: int) -> float:
        return self.milliseconds[len(self.milliseconds) * percent // 100]


class Fleet:
    """Light actors in a few processes; they have joined while the context is open.

    Args:
        learner: the address at which they join.
        actors: how many, at least 1.
        floor: the address of a floor server that gets their batches instead of the learner.
    """

    def __init__(self, learner: str, actors: int, floor: str | None = None) -> None:
        shares = [len(range(i, actors, PROCESSES)) for i in range(min(actors, PROCESSES))]
        self._boots = [{"learner": learner, "floor": floor, "actors": share} for share in shares]
        self._stack = ExitStack()
        self.acknowledged = 0
        """Batches."""

    def __enter__(self) -> Fleet:
        with self._stack as stack:
            self._children = [Child("fleet", "benchmarks.light_actors", boot) for boot in self._boots]
            for child in self._children:
                stack.callback(child.end, 10.0)
            for child in self._children:
                child.next_event(PATIENCE)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def push(self, pace: str) -> Pushed:
        for child in self._children:
            child.tell({"interval": PACES[pace], "seconds": SECONDS})
        told = [child.next_event(PATIENCE) for child in self._children]
        milliseconds = sorted(chain.from_iterable(each["milliseconds"] for each in told))
        self.acknowledged += len(milliseconds)
        return Pushed(milliseconds, max(each["seconds"] for each in told))


def own_kilobytes(pid: int) -> int:
    """Resident memory of a process without mapped files, in kB."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("RssAnon:")[2].split()[0])


def figures(fleet: Fleet, pace: str, pid: int) -> dict[str, float]:
    """Medians over several pushes, after one that does not count; the CPU time is that of the receiving process."""
    runs = []
    for _ in range(1 + RUNS):
        before = cpu_seconds(pid)
        pushed = fleet.push(pace)
        spent = cpu_seconds(pid) - before
        runs.append(
            {
                "messages/s": pushed.per_second,
                "p50 ms": pushed.percentile(50),
                "p99 ms": pushed.percentile(99),
                "cores": spent / pushed.seconds,
                "µs/message": spent / len(pushed.milliseconds) * 1e6,
            }
        )
    return {name: statistics.median(run[name] for run in runs[1:]) for name in runs[0]}


def measure(actors: int) -> list[dict[str, object]]:
    """One row for each pace."""
    with ingest("cartpole", ROWS) as server:
        address, pid = server.ingest.address, server.ingest.pid
        before = own_kilobytes(pid)
        with Fleet(address, actors) as fleet:
            ours = {pace: figures(fleet, pace, pid) for pace in PACES}
            memory = (own_kilobytes(pid) - before) / actors
        stored = server.buffer.inserted
        if stored != ROWS * fleet.acknowledged:
            raise SystemExit(f"expected {ROWS * fleet.acknowledged} steps in the replay, found {stored}")
        with floor_server() as floor, Fleet(address, actors, floor.address) as fleet:
            floors = {pace: figures(fleet, pace, floor.pid) for pace in PACES}
    return [
        {
            "actors": actors,
            "pace": pace,
            "steps/s": ROWS * ours[pace]["messages/s"],
            **ours[pace],
            "kB/actor": memory,
            **{f"floor {name}": floors[pace][name] for name in ("messages/s", "p50 ms", "µs/message")},
            "ratio": ours[pace]["messages/s"] / floors[pace]["messages/s"],
        }
        for pace in PACES
    ]


def main() -> None:
    rows = [row for actors in ACTORS for row in measure(actors)]
    report("scale", f"batches of {ROWS}, acknowledged, exactly once; the actors on the same cores", rows)


if __name__ == "__main__":
    main()
