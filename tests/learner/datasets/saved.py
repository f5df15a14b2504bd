"""Runs' directories with replays, as earlier runs leave them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np

from common.data import Column, Items, Schema
from common.parts import Parts
from learner.replay.memory import ReplayMemory
from learner.replay.writer import ReplayWriter
from learner.storage.rundir import RunDir

NUMBERED = Schema((Column("n", "<i8"), Column("x", "<f4")))


def save_replay(directory: Path, count: int, schema: Schema = NUMBERED, capacity: int = 6000) -> ReplayMemory:
    """Items 0, 1, 2, … of one batch each hundred; the run has ended."""
    n = np.arange(count)
    items = {column.name: n.astype(column.dtype) for column in schema.columns}
    batches = [{name: rows[at : at + 100] for name, rows in items.items()} for at in range(0, count, 100)]
    return save_batches(directory, schema, capacity, [(1, batch) for batch in batches])


def save_batches(directory: Path, schema: Schema, capacity: int, batches: list[tuple[int, Items]]) -> ReplayMemory:
    """Batches of actor processes, which are named by their incarnations; the run has ended."""
    RunDir(directory).close()
    memory = ReplayMemory(directory / "shared" / "replay", schema, capacity, create=True)
    writer = ReplayWriter(memory)
    for incarnation, batch in batches:
        seq = writer.last_seq(incarnation) + 1
        writer.append(batch, schema.count(batch), incarnation=incarnation, seq=seq)
    return memory


def parts_of(schema: Schema) -> Parts:
    """A run's parts as far as a saved replay asks for them."""
    return cast(Parts, SimpleNamespace(schema=schema))
