"""A writer that is killed at any instruction leaves a batch and its cursor both or neither."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np

from learner.replay.memory import ReplayMemory
from learner.replay.reader import ReplayReader
from learner.replay.writer import ReplayWriter
from tests.frames import SCHEMA, check_stacks, stacked_items

STRIDE: Final = 7
"""One of so many instructions is tried."""


class KilledError(BaseException):
    pass


def killed_at(instruction: int, writer: ReplayWriter, incarnation: int, rows: int, start: int) -> bool:
    """Append a batch, killed at an instruction of the replay's modules; whether it came so far."""
    left = instruction

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if "/learner/replay/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            left -= 1
            if left < 0:
                raise KilledError
        return trace

    items, before = stacked_items(np.arange(start, start + rows)), sys.gettrace()
    try:
        sys.settrace(trace)
        writer.append(items, rows, incarnation, writer.last_seq(incarnation) + 1)
    except KilledError:
        return True
    finally:
        sys.settrace(before)
    return False


def opened(directory: Path, *, create: bool = False) -> ReplayMemory:
    return ReplayMemory(directory / "replay", SCHEMA, 30, create=create, frame_capacity=100)


def test_a_writer_killed_at_any_instruction_leaves_a_batch_and_its_cursor_both_or_neither(tmp_path: Path) -> None:
    memory = opened(tmp_path / "before", create=True)
    writer = ReplayWriter(memory)
    for _ in range(12):  # The rings have gone round.
        writer.append(stacked_items(np.arange(memory.committed, memory.committed + 4)), 4, 1, writer.last_seq(1) + 1)
    stored = set[int]()
    for instruction in itertools.count(0, STRIDE):
        shutil.rmtree(tmp_path / "killed", ignore_errors=True)
        shutil.copytree(tmp_path / "before", tmp_path / "killed")
        was_killed = killed_at(instruction, ReplayWriter(opened(tmp_path / "killed")), 2, 4, start=48)
        memory = opened(tmp_path / "killed")
        writer = ReplayWriter(memory)
        assert memory.committed == 48 + 4 * writer.last_seq(2), instruction
        assert memory.problem() is None
        index = np.arange(memory.first(), memory.committed)
        _, items = ReplayReader(memory).take(lambda _, drawn=index: {"index": drawn}, len(index))  # type: ignore[misc]
        np.testing.assert_array_equal(items["n"], index)
        check_stacks(items)
        stored.add(writer.last_seq(2))
        if not was_killed:
            break
    assert stored == {0, 1}
    assert instruction > 50 * STRIDE
