"""A run at full rate for long: no process grows, in memory or in file descriptors."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from common.process.clocks import Deadline
from tests.chaos.fleet import Fleet
from tests.chaos.report import scratch, tell
from tests.conftest import named

N_ACTORS: Final = 2
SAMPLE_SECONDS: Final = 5.0
SETTLED: Final = 0.4
"""Share of the time after which a process should have all that it needs."""
MAX_SLOPE: Final = 512.0
"""KiB a minute; less than the resolution of a short soak, and 720 MiB a day."""


def resident_kib(pid: int) -> int:
    """Resident memory of a process, mapped files included."""
    return _memory_kib(pid, "VmRSS")


def own_kib(pid: int) -> int:
    """Resident memory of a process without mapped files, such as those of the replay."""
    return _memory_kib(pid, "RssAnon")


def _memory_kib(pid: int, kind: str) -> int:
    found = re.search(rf"{kind}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def slope(minutes: list[float], values: list[int]) -> float:
    """Growth a minute of the settled part, by least squares."""
    begin = int(SETTLED * len(minutes))
    return float(np.polyfit(minutes[begin:], values[begin:], 1)[0])


def soak(minutes: float) -> dict[str, Any]:
    """Watch trainer, ingest and actors for so long.

    Raises:
        AssertionError: one of them grows.
    """
    replay = {"capacity": 50_000, "samples_per_insert": 8}
    with scratch() as directory, Fleet(directory, N_ACTORS, replay=replay) as fleet:
        fleet.ready()
        server = fleet.server.process.pid
        pids = {"trainer": server, "ingest": named("ingest", server)[0]}
        pids |= {f"actor {i}": actor.process.pid for i, actor in enumerate(fleet.actors)}
        begun, start, end = fleet.standing().stored, time.monotonic(), Deadline(60 * minutes)
        at: list[float] = []
        memory: dict[str, list[int]] = {name: [] for name in pids}
        files: dict[str, list[int]] = {name: [] for name in pids}
        while not end.passed():
            at.append((time.monotonic() - start) / 60)
            for name, pid in pids.items():
                memory[name].append(resident_kib(pid))
                files[name].append(open_files(pid))
            tell(f"minute {at[-1]:.1f} of {minutes:g}: " + ", ".join(f"{name} {memory[name][-1]} KiB" for name in pids))
            time.sleep(min(SAMPLE_SECONDS, end.remaining()))  # It is time that is to pass.
        items = fleet.standing().stored - begun
        fleet.stop()
    found = {
        name: {
            "resident_mib": round(memory[name][-1] / 1024, 1),
            "kib_a_minute": round(slope(at, memory[name]), 1),
            "files_at_first": files[name][int(SETTLED * len(at))],
            "files_at_last": files[name][-1],
        }
        for name in pids
    }
    for name, figures in found.items():
        assert figures["kib_a_minute"] <= MAX_SLOPE, (name, figures)
        assert figures["files_at_last"] <= figures["files_at_first"], (name, figures)
    return {"minutes": minutes, "items": items, "items_a_second": round(items / (60 * minutes)), "processes": found}
