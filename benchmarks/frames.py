"""What it costs to send and keep each frame once: Atari-sized transitions, beside the same without.

The floor of each figure is the same work on plain columns, whole stacks in every item.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.report import median, report
from benchmarks.screens import Screens, life
from common.codec import encode
from common.data import Schema
from common.envs import spec_of
from common.frames import Packer
from common.processors import OneStep
from learner.replay.memory import ReplayMemory, ReplayWriter
from learner.replay.uniform import UniformReplay

CAPACITY, BATCH, DRAWN, TIMES = 4096, 64, 32, 200


def micros(work: Callable[[], object]) -> float:
    """Microseconds of one call, over many."""
    started = time.perf_counter()
    for _ in range(TIMES):
        work()
    return (time.perf_counter() - started) / TIMES * 1e6


def measure(schema: Schema, directory: Path) -> dict[str, object]:
    items = life(schema, BATCH)
    frames = int(1.25 * CAPACITY)
    memory = ReplayMemory(directory / "replay", schema, CAPACITY, create=True, frame_capacity=frames)
    writer = ReplayWriter(memory)
    for seq in range(1, CAPACITY // BATCH + 1):
        writer.append_packed(Packer(schema).pack(items, BATCH), incarnation=1, seq=seq)
    replay = UniformReplay(memory, seed=0)
    kept = sum(path.stat().st_size for path in (directory / "replay").iterdir() if path.name[:5] in ("colum", "frame"))
    return {
        "bytes/transition sent": len(encode(schema, items, BATCH)) / BATCH,
        "bytes/transition kept": kept / CAPACITY,
        "encode µs/transition": median(lambda: micros(lambda: encode(schema, items, BATCH)) / BATCH),
        f"draw µs/{DRAWN}": median(lambda: micros(lambda: replay.batch(DRAWN))),
    }


def main() -> None:
    once = OneStep().schema(spec_of(Screens()))
    stacked = Schema(tuple(replace(column, frames=False) for column in once.columns))
    rows = []
    for name, schema in (("once", once), ("stacked", stacked)):
        with tempfile.TemporaryDirectory() as directory:
            rows.append({"frames": name, **measure(schema, Path(directory))})
    report("frames", f"batches of {BATCH}, in one episode", rows)


if __name__ == "__main__":
    main()
