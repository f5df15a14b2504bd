"""A writer that is alone goes back to where it was, and from there on as if nothing had been in between."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.replay.memory import ReplayMemory
from learner.replay.reader import ReplayReader
from learner.replay.writer import ReplayWriter
from tests.frames import SCHEMA, stacked_items

OWN, OTHER = 1, 7
CAPACITY, SLACK, FRAMES = 30, 20, 100
SIZES = st.lists(st.integers(1, 4), max_size=40)


def opened(directory: Path, *, create: bool = False, slack: int = SLACK) -> tuple[ReplayMemory, ReplayWriter]:
    memory = ReplayMemory(directory / "replay", SCHEMA, CAPACITY, create=create, frame_capacity=FRAMES, slack=slack)
    return memory, ReplayWriter(memory)


def append(writer: ReplayWriter, memory: ReplayMemory, sizes: list[int], incarnation: int = OWN) -> None:
    for size in sizes:
        items = stacked_items(np.arange(memory.committed, memory.committed + size))
        writer.append(items, size, incarnation, writer.last_seq(incarnation) + 1)


def contents(memory: ReplayMemory) -> dict[str, object]:
    """Everything that can be drawn, where it is, and how many frames there ever were."""
    first = memory.first()
    _, items = ReplayReader(memory).take(lambda n: {"index": np.arange(first, first + n)}, len(memory))
    return {"first": first, "frames": int(memory.header.frames_end), **{k: v.tolist() for k, v in items.items()}}


@settings(max_examples=60)
@given(before=SIZES, lost=st.lists(st.integers(1, 4), max_size=5), after=SIZES)
def test_after_going_back_all_goes_on_as_if_nothing_had_been_in_between(
    tmp_path_factory: pytest.TempPathFactory, before: list[int], lost: list[int], after: list[int]
) -> None:
    one, other = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other")
    memory, writer = opened(one, create=True)
    append(writer, memory, before)
    mark, then = json.loads(json.dumps(writer.mark())), contents(memory)
    append(writer, memory, lost)

    memory, writer = opened(one)  # Another process, after a kill.
    assert writer.roll_back(mark, OWN)
    assert contents(memory) == then
    append(writer, memory, after)

    straight, writer = opened(other, create=True)
    append(writer, straight, [*before, *after])
    assert contents(memory) == contents(straight)


def test_what_has_been_overwritten_does_not_come_back(tmp_path: Path) -> None:
    memory, writer = opened(tmp_path, create=True)
    beginning = writer.mark()
    append(writer, memory, [1] * CAPACITY)
    mark = writer.mark()
    append(writer, memory, [1] * SLACK)
    assert writer.roll_back(mark, OWN)
    append(writer, memory, [1] * (SLACK + 1))
    then = contents(memory)
    assert not writer.roll_back(mark, OWN)
    assert contents(memory) == then
    assert writer.roll_back(beginning, OWN), "for which nothing is needed"
    assert memory.committed == 0


def test_files_without_slack_forget_nothing_once_they_are_full(tmp_path: Path) -> None:
    memory, writer = opened(tmp_path, create=True, slack=0)
    append(writer, memory, [1] * CAPACITY)
    mark = writer.mark()
    append(writer, memory, [1])
    memory, writer = opened(tmp_path)
    assert memory.slack == 0, "slack is that of the files"
    assert not writer.roll_back(mark, OWN)


def test_what_others_have_stored_is_never_forgotten(tmp_path: Path) -> None:
    memory, writer = opened(tmp_path, create=True)
    append(writer, memory, [2])
    mark = writer.mark()
    append(writer, memory, [2], OTHER)
    append(writer, memory, [2])
    assert not writer.roll_back(mark, OWN)
    mark = writer.mark()
    append(writer, memory, [2])
    assert writer.roll_back(mark, OWN)
    assert memory.committed == 6


def test_items_that_a_power_cut_took_do_not_come_back(tmp_path: Path) -> None:
    memory, writer = opened(tmp_path / "one", create=True)
    append(writer, memory, [2, 2])
    mark = writer.mark()
    memory, writer = opened(tmp_path / "other", create=True)
    append(writer, memory, [2])
    assert not writer.roll_back(mark, OWN)
