"""The replay of a run that has ended, as tests look at it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

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


def assert_lanes(rows: Items, links: Array) -> None:
    """Each environment's rows are those of its first steps: once, in order, in one lane, and linked to each other."""
    tags = rows["obs"][:, 0].astype(int)
    assert_complete(rows, dict(Counter(tags[~rows["final"]].tolist())))
    for tag in set(tags.tolist()):
        mine = np.flatnonzero(tags == tag)
        assert len(set(rows["lane"][mine].tolist())) == 1
        np.testing.assert_array_equal(links[mine][1:], np.diff(mine), err_msg=f"environment {tag}")
        before = mine[0] - links[mine[0]]
        assert before == mine[0] or rows["final"][before], "an episode that broke off goes on as another one"
