"""Replays for tests: items hold their own index, plain ones or ones with stacks of frames."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pytest

from common.data import Column, Items, Schema
from learner.replay.batch_log import BatchLog
from learner.replay.memory import ReplayMemory
from learner.replay.reader import ReplayReader
from learner.replay.writer import ReplayWriter
from learner.shared.control import Word
from tests.conftest import ROOT
from tests.frames import SCHEMA as STACKED
from tests.frames import stacked_items

SCHEMA: Final = Schema((Column("n", "<i8"), Column("pair", "<f4", (2,))))
WIDE: Final = Schema((Column("n", "<i8"), Column("many", "<i8", (64,))))
"""Rows that take long enough to gather that a writer tears some of them."""
CAPACITY, FRAMES, BATCH = 512, 384, 16
"""Of ``endless_writer``. Stacked items come with about 1.2 frames each, so frames run out before rows."""


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


def open_stacked(directory: Path, *, create: bool, capacity: int = CAPACITY, frames: int = FRAMES) -> ReplayMemory:
    """A replay of stacked items."""
    return ReplayMemory(directory / "replay", STACKED, capacity, create=create, frame_capacity=frames)


def next_stacked(memory: ReplayMemory, size: int) -> Items:
    """The stacked items that come next."""
    return stacked_items(np.arange(memory.committed, memory.committed + size))


def read_all(memory: ReplayMemory) -> Items:
    """All items that count, in order, after seeing that each holds its own index."""
    indices = np.arange(memory.first(), memory.committed)
    items = ReplayReader(memory).read(indices) if len(indices) else memory.schema.empty(0)
    assert items is not None
    np.testing.assert_array_equal(items["n"], indices)
    return items


@contextmanager
def writing(directory: Path, kind: Literal["wide", "stacked"]) -> Iterator[subprocess.Popen[bytes]]:
    """Another process writes into the replay as fast as it can; it has ended when the context has."""
    command = [sys.executable, "-m", "tests.learner.replay.endless_writer", str(directory), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as writer:
        yield writer
    assert writer.returncode in {0, -signal.SIGKILL}, "it failed"


class KilledError(BaseException):
    """Stands for a kill."""


@contextmanager
def killed_after(writes: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill before a write of a header's word, of the log or to the disk that follows this many others."""
    left = writes

    def write_or_kill(write: Callable[..., object], *arguments: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise KilledError
        return write(*arguments)

    with monkeypatch.context() as patch:
        set_word, keep = Word.__set__, BatchLog.keep
        patch.setattr(Word, "__set__", lambda *arguments: write_or_kill(set_word, *arguments))
        patch.setattr(BatchLog, "keep", lambda *arguments: write_or_kill(keep, *arguments))
        patch.setattr(ReplayMemory, "sync", lambda memory: write_or_kill(lambda: None))
        yield
