"""A run's directory with a replay of numbered items, as an earlier run leaves it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np

from common.data import Column, Schema
from common.parts import Parts
from learner.replay.memory import ReplayMemory
from learner.replay.writer import ReplayWriter
from learner.storage.rundir import RunDir

NUMBERED = Schema((Column("n", "<i8"), Column("x", "<f4")))


def save_replay(directory: Path, count: int, schema: Schema = NUMBERED, capacity: int = 3000) -> ReplayMemory:
    """Items 0, 1, 2, … of one batch each hundred; the run has ended."""
    RunDir(directory).close()
    memory = ReplayMemory(directory / "shared" / "replay", schema, capacity, create=True)
    writer = ReplayWriter(memory)
    for seq, start in enumerate(range(0, count, 100), start=1):
        n = np.arange(start, min(start + 100, count))
        items = {column.name: n.astype(column.dtype) for column in schema.columns}
        writer.append(items, len(n), incarnation=1, seq=seq)
    return memory


def parts_of(schema: Schema) -> Parts:
    """A run's parts as far as a saved replay asks for them."""
    return cast(Parts, SimpleNamespace(schema=schema))
