"""The cost of sending and storing each frame once, on transitions of Atari's size.

The floor of each figure is the same work where every item has whole stacks of frames in plain columns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

from benchmarks.report import median, report
from benchmarks.screens import Screens, life
from common.data import Schema
from common.envs import spec_of
from common.processors import OneStep
from common.wire.codec import decode, encode
from common.wire.compression import compress, decompress
from learner.replay.memory import ReplayMemory
from learner.replay.uniform import UniformReplay
from learner.replay.writer import ReplayWriter

CAPACITY, BATCH, DRAWN, TIMES = 4096, 64, 32, 200


def micros(work: Callable[[], object]) -> float:
    """Microseconds of processor time for one transition, of ``BATCH`` in a call; the mean of many calls."""
    started = time.process_time()
    for _ in range(TIMES):
        work()
    return (time.process_time() - started) / TIMES / BATCH * 1e6


def measure(schema: Schema, directory: Path) -> dict[str, object]:
    items = life(schema, BATCH)
    payload = encode(schema, items, BATCH)
    sent = compress(payload) if schema.frame else payload
    memory = ReplayMemory(directory / "replay", schema, CAPACITY, create=True, frame_capacity=int(1.25 * CAPACITY))
    writer = ReplayWriter(memory)
    seqs = count(1)

    def store() -> None:
        received = decompress(sent, len(payload)) if schema.frame else sent
        writer.append_packed(decode(schema, BATCH, received), incarnation=1, seq=next(seqs))

    for _ in range(CAPACITY // BATCH):
        store()
    replay = UniformReplay(memory, seed=0)
    framed = memory.frames_stored * schema.frame.row_bytes / memory.committed + 8 if schema.frame else 0.0
    return {
        "bytes/transition sent": len(sent) / BATCH,
        "kept": schema.packed_row_bytes + framed,  # With 8 bytes for the number that a row's positions count from.
        "µs/transition to encode": median(lambda: micros(lambda: encode(schema, items, BATCH))),
        "compress": median(lambda: micros(lambda: compress(payload))) if schema.frame else 0.0,
        "receive and store": median(lambda: micros(store)),
        f"draw {DRAWN}": median(lambda: micros(lambda: replay.batch(DRAWN))) * BATCH,
    }


def main() -> None:
    once = OneStep().schema(spec_of(Screens()))
    stacked = Schema(tuple(replace(column, frames=False) for column in once.columns))
    rows = []
    for name, schema in (("once", once), ("stacked", stacked)):
        with tempfile.TemporaryDirectory() as directory:
            rows.append({"frames": name, **measure(schema, Path(directory))})
    report("frames", f"batches of {BATCH}, in one episode of Pong; processor time", rows)


if __name__ == "__main__":
    main()
