"""The replay of a run that has ended, as tests look at it."""

from __future__ import annotations

from pathlib import Path

from common.data import Array, Items
from learner.replay.memory import ReplayMemory
from learner.replay.ring import read_ring
from tests.parts import assert_complete, assert_linked


def open_replay(run_dir: Path) -> ReplayMemory:
    """The replay of a run, for reading."""
    return ReplayMemory.open_saved(run_dir / "shared" / "replay")


def stored_rows(run_dir: Path) -> Items:
    """All rows that count, oldest first."""
    memory = open_replay(run_dir)
    return {name: read_ring(ring, memory.first(), memory.committed) for name, ring in memory.columns.items()}


def stored_links(run_dir: Path) -> Array:
    """By how many rows the row before lies back, for all rows that count, ``[n]``."""
    memory = open_replay(run_dir)
    assert memory.links is not None
    return read_ring(memory.links.previous, memory.first(), memory.committed)


def assert_stored(run_dir: Path, steps_by_tag: dict[int, int]) -> None:
    """Each counting environment's rows are there once, in order and linked, and there are no others."""
    memory, rows = open_replay(run_dir), stored_rows(run_dir)
    assert memory.first() == memory.began, "nothing may have been overwritten"
    assert_complete(rows, steps_by_tag)
    assert_linked(rows, stored_links(run_dir))
    assert memory.steps == memory.steps_began + sum(steps_by_tag.values())
