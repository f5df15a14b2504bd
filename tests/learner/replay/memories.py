"""Replays for tests: rows that hold their own index, as self-contained items or linked in lanes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pytest

from common.data import Array, Column, Items, Schema
from common.shared.mapped import Word
from learner.replay.batch_log import BatchLog
from learner.replay.links import Links
from learner.replay.memory import ReplayMemory
from learner.replay.ring import read_ring
from learner.replay.writer import ReplayWriter
from tests.conftest import ROOT

SCHEMA: Final = Schema((Column("n", "<i8"), Column("pair", "<f4", (2,))))
WIDE: Final = Schema((Column("n", "<i8"), Column("many", "<i8", (64,))))
"""Items that take long enough to gather that a writer tears some of them."""
LINKED: Final = Schema.of_rows((Column("n", "<i8"), Column("many", "<i8", (8,))))
"""Rows of ``LANES`` lanes that step in turn."""
CAPACITY, BATCH, LANES, EPISODE = 512, 16, 3, 4
"""Of ``endless_writer``, if a test does not say otherwise. An episode of 4 steps takes 5 rows."""


def rows(start: int, count: int) -> Items:
    """Items of ``SCHEMA`` with the indices from ``start`` on."""
    n = np.arange(start, start + count)
    return {"n": n, "pair": np.stack([n, n], axis=1).astype(np.float32)}


def wide_rows(start: int, count: int) -> Items:
    """Items of ``WIDE``: each element of ``many`` is the item's index."""
    n = np.arange(start, start + count)
    return {"n": n, "many": np.repeat(n[:, None], 64, axis=1)}


def check_wide(items: Items) -> None:
    """See that no row is torn."""
    np.testing.assert_array_equal(items["many"], np.repeat(items["n"][:, None], 64, axis=1))


def linked_rows(start: int, count: int) -> Items:
    """Rows of ``LINKED`` with the indices from ``start`` on, of one actor whose lanes began with row 0."""
    n = np.arange(start, start + count)
    place = n // LANES % (EPISODE + 1)
    return {
        "n": n,
        "many": np.repeat(n[:, None], 8, axis=1),
        "version": n.astype(np.uint32),
        "first": place == 0,
        "final": place == EPISODE,
        "lane": (n % LANES).astype(np.uint16),
    }


def make(directory: Path, capacity: int = 10) -> tuple[ReplayMemory, ReplayWriter]:
    """A new replay of ``SCHEMA``."""
    memory = ReplayMemory(directory / "replay", SCHEMA, capacity, create=True)
    return memory, ReplayWriter(memory)


def reopen(directory: Path, capacity: int = 10) -> tuple[ReplayMemory, ReplayWriter]:
    """The replay that ``make`` made, as a process opens it that comes later."""
    memory = ReplayMemory(directory / "replay", SCHEMA, capacity, create=False)
    return memory, ReplayWriter(memory)


def readable(memory: ReplayMemory) -> list[int]:
    """The items that count, in order."""
    slots = np.arange(memory.first(), memory.committed) % memory.capacity
    return [int(n) for n in memory.columns["n"][slots]]


def open_linked(directory: Path, *, create: bool, capacity: int = CAPACITY, **options: Any) -> ReplayMemory:
    """A replay of ``LINKED``."""
    return ReplayMemory(directory / "replay", LINKED, capacity, create=create, **options)


def next_linked(memory: ReplayMemory, size: int) -> Items:
    """The linked rows that come next."""
    return linked_rows(memory.committed, size)


def read_all(memory: ReplayMemory) -> Items:
    """All rows that count, in order."""
    return {name: read_ring(ring, memory.first(), memory.committed) for name, ring in memory.columns.items()}


def check_linked(memory: ReplayMemory) -> Items:
    """See that every row that counts is as it was sent and linked as it was sent; return all of them."""
    found = read_all(memory)
    for name, column in linked_rows(memory.first(), len(memory)).items():
        np.testing.assert_array_equal(found[name], column, err_msg=name)
    check_links(memory)
    return found


def check_links(memory: ReplayMemory) -> None:
    """See that the rows that count are linked as a look at each of them links them, and that the counts are right."""
    assert memory.links is not None
    first, end = memory.first(), memory.committed
    expected = expected_previous(read_all(memory), memory.find_origins(np.arange(first, end)), first)
    assert previous_rows(memory).tolist() == expected
    following = dict(zip(expected, range(first, end), strict=True))
    assert next_rows(memory).tolist() == [following.get(row, -1) for row in range(first, end)]
    final = read_ring(memory.columns["final"], first, end).tolist()
    drawable = sum(row in following and not final[row - first] for row in range(first, end))
    assert memory.drawable == memory.count_drawable(first, end) == drawable


def expected_previous(found: Items, origins: Array, first: int) -> list[int]:
    """The row before each row in its lane; -1 where there is none."""
    last: dict[tuple[int, int], tuple[int, bool]] = {}
    previous = []
    keys = zip(origins.tolist(), found["lane"].tolist(), strict=True)
    for row, key in enumerate(keys, start=first):
        before, was_final = last.get(key, (-1, False))
        previous.append(before if was_final == found["first"][row - first] else -1)
        last[key] = row, bool(found["final"][row - first])
    return previous


def previous_rows(memory: ReplayMemory) -> Array:
    """The rows before all rows that count, as a reader sees them, ``[n]``; -1 where there is none."""
    assert memory.links is not None
    first, end = memory.first(), memory.committed
    offsets = read_ring(memory.links.previous, first, end)
    found = np.arange(first, end) - offsets
    return np.where((offsets != 0) & (found >= first), found, -1)


def next_rows(memory: ReplayMemory) -> Array:
    """The rows after all rows that count, as a reader sees them, ``[n]``; -1 where there is none."""
    assert memory.links is not None
    first, end = memory.first(), memory.committed
    offsets = read_ring(memory.links.next, first, end)
    found = np.arange(first, end) + offsets
    return np.where((offsets != 0) & (found < end), found, -1)


@contextmanager
def writing(
    directory: Path, kind: Literal["wide", "linked"], capacity: int = CAPACITY
) -> Iterator[subprocess.Popen[bytes]]:
    """Another process writes into the replay as fast as it can; it has ended when the context has."""
    command = [sys.executable, "-m", "tests.learner.replay.endless_writer", str(directory), kind, str(capacity)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as writer:
        yield writer
    assert writer.returncode in {0, -signal.SIGKILL}, "it failed"


class KilledError(BaseException):
    """Stands for a kill."""


@contextmanager
def killed_after(writes: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill before a write of a header's word, of the log, of links or to the disk that follows this many others."""
    left = writes

    def write_or_kill(write: Callable[..., object], *arguments: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise KilledError
        return write(*arguments)

    with monkeypatch.context() as patch:
        for owner, name in ((Word, "__set__"), (BatchLog, "keep"), (Links, "cut"), (Links, "rebuild")):
            write = getattr(owner, name)
            patch.setattr(owner, name, lambda *arguments, write=write: write_or_kill(write, *arguments))
        patch.setattr(ReplayMemory, "sync", lambda memory: write_or_kill(lambda: None))
        yield
