"""A fleet of ``benchmarks.light_actors`` in a few child processes, and the figures of their pushes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from benchmarks.report import cpu_seconds
from common.process.child import Child

ROWS: Final = 64
PROCESSES: Final = 4
PATIENCE: Final = 120.0


@dataclass(frozen=True)
class Pushed:
    """The measurements of one push.

    Args:
        milliseconds: to the acknowledgement of each batch, sorted.
        seconds: from the first batch to the last acknowledgement.
        cpu_seconds: processor time that the actors took.
    """

    milliseconds: list[float]
    seconds: float
    cpu_seconds: float

    @property
    def per_second(self) -> float:
        return len(self.milliseconds) / self.seconds

    def percentile(self, percent: int) -> float:
        return self.milliseconds[len(self.milliseconds) * percent // 100]


@contextmanager
def started(name: str, module: str, boots: Sequence[Mapping[str, Any]]) -> Iterator[list[Child]]:
    """Child processes, one for each boot line, that have said that they are ready; they end with the context."""
    with ExitStack() as stack:
        children = [Child(name, module, boot) for boot in boots]
        for child in children:
            stack.callback(child.end, 10.0)
        for child in children:
            child.next_event(PATIENCE)
        yield children


class Fleet:
    """Light actors in a few processes; they have joined while the context is open.

    Args:
        learner: the address at which they join.
        actors: how many, at least 1.
        floor: the address of a floor server that gets their batches instead of the learner.
        rows: of a batch.
        processes: the most processes in which they run.
    """

    def __init__(
        self, learner: str, actors: int, floor: str | None = None, *, rows: int = ROWS, processes: int = PROCESSES
    ) -> None:
        shares = [len(range(i, actors, processes)) for i in range(min(actors, processes))]
        self._boots = [{"learner": learner, "floor": floor, "actors": share, "rows": rows} for share in shares]
        self._stack = ExitStack()
        self._cpu_began = 0.0
        self.acknowledged = 0
        """Batches."""

    def __enter__(self) -> Fleet:
        self._children = self._stack.enter_context(started("fleet", "benchmarks.light_actors", self._boots))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def begin_push(self, interval: float, seconds: float) -> None:
        """Let every actor push a batch each ``interval`` seconds, as fast as it can at 0, for ``seconds``."""
        self._cpu_began = self._cpu_seconds()
        for child in self._children:
            child.tell({"interval": interval, "seconds": seconds})

    def end_push(self) -> Pushed:
        """Wait until the last batch is acknowledged."""
        told = [child.next_event(PATIENCE) for child in self._children]
        milliseconds = sorted(chain.from_iterable(each["milliseconds"] for each in told))
        self.acknowledged += len(milliseconds)
        seconds = max(each["seconds"] for each in told)
        return Pushed(milliseconds, seconds, self._cpu_seconds() - self._cpu_began)

    def _cpu_seconds(self) -> float:
        return sum(cpu_seconds(child.pid) for child in self._children)


@dataclass(frozen=True)
class Shard:
    """A fleet and the process that takes its batches."""

    fleet: Fleet
    pid: int


def push_together(shards: Sequence[Shard], interval: float, seconds: float) -> list[tuple[Pushed, float]]:
    """Let the fleets of all shards push at the same time.

    Returns:
        For each shard what its fleet measured, and the processor seconds of its ``pid``.
    """
    before = [cpu_seconds(shard.pid) for shard in shards]
    for shard in shards:
        shard.fleet.begin_push(interval, seconds)
    pushed = [shard.fleet.end_push() for shard in shards]
    return [(each, cpu_seconds(s.pid) - began) for each, s, began in zip(pushed, shards, before, strict=True)]


def median_of(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure, after the first run, which does not count."""
    return {name: statistics.median(run[name] for run in runs[1:]) for name in runs[0]}


def own_kilobytes(pid: int) -> int:
    """Resident memory of a process without mapped files, in kB."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("RssAnon:")[2].split()[0])
