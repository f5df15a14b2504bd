"""The one writer of a replay: what it stores, what a kill leaves, and how it goes back to an earlier end."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.data import Items
from common.errors import RefusedError, SchemaMismatchError
from learner.replay.memory import ReplayMemory
from learner.replay.recovery import make_whole
from learner.replay.value_rules import ValueRules
from learner.replay.writer import CursorsFullError, LocalSink, ReplayWriter
from tests.conftest import ROOT, wait_for
from tests.disks import Disk
from tests.frames import SCHEMA as FILM
from tests.frames import check_pictures, picture_rows
from tests.learner.replay.memories import (
    BATCH,
    SCHEMA,
    KilledError,
    check_linked,
    check_links,
    killed_after,
    linked_rows,
    make,
    next_linked,
    next_rows,
    open_linked,
    previous_rows,
    read_all,
    readable,
    reopen,
    rows,
    writing,
)

STRIDE: Final = 13
"""One of this many instructions is tried, from another one on in each run."""
OWN, OTHER = 1, 7
CAPACITY, SLACK = 30, 20
SIZES = st.lists(st.integers(1, 4), max_size=40)


@given(st.lists(st.integers(1, 10), max_size=30))
def test_the_newest_items_up_to_the_capacity_are_kept_in_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    memory, writer = make(tmp_path_factory.mktemp("replay"))
    total = 0
    for seq, size in enumerate(sizes, start=1):
        writer.append(rows(total, size), size, incarnation=1, seq=seq)
        total += size
    assert memory.committed == total
    assert len(memory) == min(total, 10)
    assert readable(memory) == list(range(max(0, total - 10), total))


def test_a_batch_larger_than_the_replay_is_a_programming_error(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True, capacity=4)
    with pytest.raises(AssertionError, match="5 rows in a batch of 1 to 4"):
        ReplayWriter(memory).append(next_linked(memory, 5), 5, incarnation=1, seq=1)


# Cursors.


def test_the_cursor_unused_for_longest_makes_room_once_its_items_are_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.replay.memory.N_CURSORS", 20)
    _, writer = make(tmp_path)
    for incarnation in range(1, 22):
        writer.append(rows(0, 1), 1, incarnation, seq=1)
    assert writer.last_seq(1) == 0
    assert writer.last_seq(2) == 1
    assert writer.last_seq(21) == 1


def test_no_batch_is_stored_twice_for_want_of_cursors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.replay.memory.N_CURSORS", 20)
    memory, gone = ReplayMemory(tmp_path / "replay", SCHEMA, 1000, create=True), set[int]()
    writer = ReplayWriter(memory, lambda incarnation: incarnation in gone)
    for incarnation in range(1, 21):
        writer.require_cursor(incarnation)
        writer.append(rows(incarnation, 1), 1, incarnation, seq=1)
    full = "cursors for 20 actor processes"
    with pytest.raises(CursorsFullError, match=full):
        writer.require_cursor(21)
    with pytest.raises(CursorsFullError, match=full):
        writer.append(rows(0, 1), 1, 21, seq=1)
    assert (memory.committed, writer.last_seq(1)) == (20, 1), "nothing was stored and nothing forgotten"
    writer.require_cursor(1)
    gone |= {5, 9}
    writer.append(rows(0, 1), 1, 21, seq=1)
    again = ReplayWriter(memory, lambda incarnation: incarnation in gone)
    assert [again.last_seq(incarnation) for incarnation in (1, 5, 9, 21)] == [1, 0, 1, 1]


def test_a_process_that_is_gone_gives_up_its_cursor_first_and_one_that_holds_an_id_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.replay.memory.N_CURSORS", 4)
    memory, gone, present = ReplayMemory(tmp_path / "replay", SCHEMA, 4, create=True), {3}, {1}
    writer = ReplayWriter(memory, gone.__contains__, present.__contains__)
    for incarnation in (1, 2, 3, 4, 4, 4, 4):
        writer.append(rows(0, 1), 1, incarnation, seq=writer.last_seq(incarnation) + 1)
    writer.append(rows(0, 1), 1, 5, seq=1)
    assert [writer.last_seq(incarnation) for incarnation in range(1, 6)] == [1, 1, 0, 4, 1]
    writer.append(rows(0, 1), 1, 6, seq=1)
    assert [writer.last_seq(incarnation) for incarnation in (1, 2, 6)] == [1, 0, 1]
    with pytest.raises(CursorsFullError, match="cursors for 4 actor processes"):
        writer.require_cursor(7)


def test_without_a_free_cursor_the_process_that_is_least_needed_gives_up_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.replay.memory.N_CURSORS", 4)
    memory, asked, present = ReplayMemory(tmp_path / "replay", SCHEMA, 1000, create=True), list[list[int]](), {1}

    def least_needed(incarnations: Sequence[int]) -> int:
        asked.append([*incarnations])
        return 3

    writer = ReplayWriter(memory, None, present.__contains__, least_needed)
    for incarnation in (4, 3, 2, 1, 5):
        writer.append(rows(0, 1), 1, incarnation, seq=1)
    assert asked == [[4, 3, 2]], "those that hold no id, the longest ago first"
    assert [writer.last_seq(incarnation) for incarnation in range(1, 6)] == [1, 1, 0, 1, 1]
    present |= {2, 4, 5}
    with pytest.raises(CursorsFullError):
        writer.require_cursor(6)


# Kills.


def test_a_batch_cut_off_before_its_record_does_not_count(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 4), 4, incarnation=7, seq=1)
    memory.columns["n"][4:6] = -1  # Killed after it had begun to write three rows.
    memory, again = reopen(tmp_path)
    assert readable(memory) == [0, 1, 2, 3]
    assert again.last_seq(7) == 1
    again.append(rows(4, 3), 3, incarnation=7, seq=2)
    assert readable(memory) == [0, 1, 2, 3, 4, 5, 6]


def test_rows_that_a_killed_writer_had_begun_to_overwrite_are_not_read(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 10), 10, incarnation=7, seq=1)
    memory.header.oldest = 3  # Killed after it had given up three rows and begun to overwrite them.
    memory.columns["n"][0:2] = -1
    memory, again = reopen(tmp_path)
    assert readable(memory) == list(range(3, 10))
    again.append(rows(10, 1), 1, incarnation=7, seq=2)
    assert readable(memory) == list(range(3, 11))


def test_a_batch_cut_off_after_its_record_counts_whole(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 4), 4, incarnation=7, seq=1)
    memory.cursors["seq"][:] = 0  # Killed before the cursor and the watermark were written.
    memory.header.committed = 0
    memory, again = reopen(tmp_path)
    assert readable(memory) == [0, 1, 2, 3]
    assert again.last_seq(7) == 1


def test_a_batch_cut_off_after_its_record_counts_with_its_links(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True)
    writer = ReplayWriter(memory)
    for seq in (1, 2):
        writer.append(next_linked(memory, 4), 4, incarnation=7, seq=seq)
    assert memory.links is not None
    memory.cursors["seq"][0] = 1  # Killed before the links of earlier rows, the cursor and the counters were written.
    memory.links.next[1:4] = 0
    memory.header.steps, memory.header.drawable, memory.header.committed = 4, 1, 4
    memory = open_linked(tmp_path, create=False)
    again = ReplayWriter(memory)
    assert (again.last_seq(7), memory.committed, memory.steps, memory.drawable) == (2, 8, 8, 5)
    again.append(next_linked(memory, 10), 10, incarnation=7, seq=3)
    check_linked(memory)


@pytest.mark.parametrize("rounds", [1, 5, 40])
@pytest.mark.parametrize("fences", [1, 2, 3])
def test_a_writer_killed_between_any_two_steps_leaves_each_batch_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, fences: int
) -> None:
    memory = open_linked(tmp_path, create=True)
    writer = ReplayWriter(memory)
    for seq in range(1, rounds + 1):
        writer.append(next_linked(memory, BATCH), BATCH, incarnation=7, seq=seq)
    passed = 0

    def fence() -> None:
        nonlocal passed
        passed += 1
        if passed == fences:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("learner.replay.writer.fence", fence)
        with pytest.raises(KilledError):
            writer.append(next_linked(memory, BATCH), BATCH, incarnation=7, seq=rounds + 1)
    memory = open_linked(tmp_path, create=False)
    again = ReplayWriter(memory)
    assert again.last_seq(7) == rounds + (fences == 3)
    assert memory.committed == again.last_seq(7) * BATCH
    for seq in range(again.last_seq(7) + 1, rounds + 10):
        check_linked(memory)
        again.append(next_linked(memory, BATCH), BATCH, incarnation=7, seq=seq)
    check_linked(memory)


def test_a_writer_killed_at_any_moment_leaves_a_replay_that_opens_well(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True)
    for goal in (1000, 2000, 3000):
        with writing(tmp_path, "linked") as writer:
            wait_for(lambda goal=goal: memory.committed > goal, "rows")  # type: ignore[misc]
            writer.kill()
        recovered = ReplayWriter(open_linked(tmp_path, create=False))
        assert recovered.last_seq(1) * BATCH == memory.committed
        check_linked(memory)


def is_killed_at(instruction: int, work: Callable[[], object]) -> bool:
    """Kill ``work`` at an instruction of the replay's modules; False if it has fewer instructions."""
    left = instruction

    def count(code: CodeType) -> None:
        nonlocal left
        if code.co_filename.startswith(str(ROOT / "learner" / "replay")):
            left -= 1
            if left < 0:
                raise KilledError

    try:
        with telling_instructions(count):
            work()
    except KilledError:
        return True
    return False


@contextmanager
def telling_instructions(tell: Callable[[CodeType], None]) -> Iterator[None]:
    """Call ``tell`` before each instruction of Python, with its code."""
    if sys.version_info >= (3, 12):  # A frame that ``sys.settrace`` has met tells no instructions since then.
        events = sys.monitoring
        events.use_tool_id(events.DEBUGGER_ID, "kills")
        events.register_callback(events.DEBUGGER_ID, events.events.INSTRUCTION, lambda code, _: tell(code))
        events.set_events(events.DEBUGGER_ID, events.events.INSTRUCTION)
        try:
            yield
        finally:
            events.set_events(events.DEBUGGER_ID, 0)
            events.free_tool_id(events.DEBUGGER_ID)
        return

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            tell(frame.f_code)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def open_small(directory: Path, *, create: bool = False) -> ReplayMemory:
    return open_linked(directory, create=create, capacity=CAPACITY, slack=SLACK)


@pytest.mark.parametrize("size", [1, 12])
def test_a_writer_killed_at_any_instruction_leaves_rows_links_and_cursor_of_a_batch_or_none_of_them(
    tmp_path: Path, size: int
) -> None:
    memory = open_small(tmp_path / "before", create=True)
    writer = ReplayWriter(memory)
    for seq in range(1, 16):  # The rings have gone round.
        writer.append(next_linked(memory, 4), 4, 1, seq)
    steps, stored = memory.steps, set[int]()
    more = linked_rows(60, size)
    for instruction in itertools.count(random.randrange(STRIDE), STRIDE):
        shutil.rmtree(tmp_path / "killed", ignore_errors=True)
        shutil.copytree(tmp_path / "before", tmp_path / "killed")
        writer = ReplayWriter(open_small(tmp_path / "killed"))
        was_killed = is_killed_at(instruction, partial(writer.append, more, size, incarnation=1, seq=16))
        memory = open_small(tmp_path / "killed")
        writer = ReplayWriter(memory)
        n_stored = writer.last_seq(1) - 15
        assert memory.committed == 60 + size * n_stored, instruction
        assert memory.steps == steps + int((~more["final"]).sum()) * n_stored
        assert memory.find_problem() is None
        check_linked(memory)
        writer.append(next_linked(memory, 7), 7, 1, writer.last_seq(1) + 1)
        check_linked(memory)
        stored.add(n_stored)
        if not was_killed:
            break
    assert stored == {0, 1}
    assert instruction > 50 * STRIDE


# Links.


class Model:
    """Says which row follows which, by looking at one row after another."""

    def __init__(self, capacity: int) -> None:
        self._capacity, self._last = capacity, dict[tuple[int, int], tuple[int, bool]]()
        self.previous: list[int] = []

    def add(self, items: Items, incarnation: int, *, follows: bool) -> None:
        if not follows:
            self._last = {key: last for key, last in self._last.items() if key[0] != incarnation}
        oldest = len(self.previous) + len(items["lane"]) - self._capacity
        for lane, first, final in zip(*(items[name].tolist() for name in ("lane", "first", "final")), strict=True):
            before, was_final = self._last.get((incarnation, lane), (-1, False))
            self.previous.append(before if before >= oldest and was_final == first else -1)
            self._last[incarnation, lane] = len(self.previous) - 1, final


LANE_SETS = st.sampled_from([[0], [7], [0, 1], [3, 1, 2], [0, 65_535], list(range(20))])


@st.composite
def some_rows(draw: st.DrawFn) -> Items:
    """Rows in any order and with any flags, also as no honest actor sends them."""
    n = draw(st.integers(1, 20))
    lanes = draw(LANE_SETS)
    kind = draw(st.sampled_from(["any", "rounds"]))
    chosen = (
        [lanes[i % len(lanes)] for i in range(n)]
        if kind == "rounds"
        else draw(st.lists(st.sampled_from(lanes), min_size=n, max_size=n))
    )
    flags = st.lists(st.booleans(), min_size=n, max_size=n)
    items = linked_rows(0, n)
    return {
        **items,
        "lane": np.array(chosen, np.uint16),
        "first": np.array(draw(flags)),
        "final": np.array(draw(flags)),
    }


@settings(max_examples=50)
@given(st.lists(st.tuples(some_rows(), st.sampled_from([1, 2]), st.booleans(), st.booleans()), max_size=12))
def test_any_rows_are_linked_as_a_look_at_each_of_them_links_them_also_by_a_writer_that_comes_later(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[Items, int, bool, bool]]
) -> None:
    directory, model = tmp_path_factory.mktemp("replay"), Model(CAPACITY)
    memory = open_linked(directory, create=True, capacity=CAPACITY)
    writer = ReplayWriter(memory)
    for items, incarnation, follows, is_reopened in batches:
        if is_reopened:
            memory = open_linked(directory, create=False, capacity=CAPACITY)
            writer = ReplayWriter(memory)
        rows = len(items["lane"])
        writer.append(items, rows, incarnation, writer.last_seq(incarnation) + 1, follows=follows)
        model.add(items, incarnation, follows=follows)
        expected = [row if row >= memory.first() else -1 for row in model.previous[memory.first() :]]
        assert previous_rows(memory).tolist() == expected
        following = {row for row in expected if row >= 0}
        final = read_all(memory)["final"].tolist()
        assert memory.drawable == sum(not final[row - memory.first()] for row in following)
    assert memory.drawable == memory.count_drawable(memory.first(), memory.committed)


def test_rows_that_follow_dropped_rows_continue_no_earlier_row_in_any_lane(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True)
    writer, items = ReplayWriter(memory), linked_rows(0, 6)
    items["first"][:] = False
    writer.append({name: column[:3] for name, column in items.items()}, 3, 7, 1)
    writer.append({name: column[3:4] for name, column in items.items()}, 1, 7, 2, follows=False)
    writer = ReplayWriter(open_linked(tmp_path, create=False))
    writer.append({name: column[4:] for name, column in items.items()}, 2, 7, 3)
    assert previous_rows(memory).tolist() == [-1] * 6
    writer.append(items, 6, 7, 4)
    assert previous_rows(memory).tolist()[6:] == [3, 4, 5, 6, 7, 8]


def test_lanes_of_a_process_that_sent_nothing_for_longest_are_forgotten_where_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.replay.writer.MAX_LANES", 6)
    memory = open_linked(tmp_path, create=True)
    writer = ReplayWriter(memory)
    for start, incarnation in ((0, 1), (0, 2), (0, 3), (3, 1), (3, 3)):
        writer.append(linked_rows(start, 3), 3, incarnation, writer.last_seq(incarnation) + 1)
    assert previous_rows(memory)[9:].tolist() == [-1, -1, -1, 6, 7, 8]


def test_lanes_are_forgotten_also_where_processes_that_are_known_begin_more_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.replay.writer.MAX_LANES", 6)
    memory = open_linked(tmp_path, create=True)
    writer = ReplayWriter(memory)
    for incarnation, lane in ((1, 0), (2, 0), (2, 5), (1, 0), (2, 0)):
        items = linked_rows(0, 1) | {"first": np.zeros(1, np.bool_), "lane": np.array([lane], np.uint16)}
        writer.append(items, 1, incarnation, writer.last_seq(incarnation) + 1)
    assert previous_rows(memory).tolist() == [-1] * 5, "the sixth lane of one process displaced the other process"


def test_a_writer_that_opens_a_replay_keeps_no_more_lanes_and_those_of_the_newest_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = open_linked(tmp_path, create=True)
    writer = ReplayWriter(memory)
    for incarnation in (3, 1, 2):
        writer.append(linked_rows(0, 3), 3, incarnation, 1)
    monkeypatch.setattr("learner.replay.writer.MAX_LANES", 6)
    writer = ReplayWriter(memory)
    for incarnation in (1, 2, 3):
        writer.append(linked_rows(3, 3), 3, incarnation, 2)
    assert previous_rows(memory)[9:].tolist() == [3, 4, 5, 6, 7, 8, -1, -1, -1]


# Roll-back.


def open_with_slack(directory: Path, *, create: bool = False, slack: int = SLACK) -> tuple[ReplayMemory, ReplayWriter]:
    """A new replay, or one as a resumed run opens it."""
    memory = open_linked(directory, create=create, capacity=CAPACITY, checked=False, slack=slack)
    make_whole(memory, lambda: None)
    return memory, ReplayWriter(memory)


def append(writer: ReplayWriter, memory: ReplayMemory, sizes: list[int], incarnation: int = OWN) -> None:
    for size in sizes:
        writer.append(next_linked(memory, size), size, incarnation, writer.last_seq(incarnation) + 1)


def contents(memory: ReplayMemory) -> dict[str, object]:
    """All rows that count, where they are, how they are linked, and how many steps there are."""
    columns = {name: column.tolist() for name, column in read_all(memory).items()}
    links = {"previous": previous_rows(memory).tolist(), "next": next_rows(memory).tolist()}
    return {"first": memory.first(), "steps": memory.steps, "drawable": memory.drawable, **columns, **links}


@given(before=SIZES, lost=st.lists(st.integers(1, 4), max_size=5), after=SIZES)
def test_after_a_roll_back_the_replay_goes_on_as_if_nothing_had_been_stored_since(
    tmp_path_factory: pytest.TempPathFactory, before: list[int], lost: list[int], after: list[int]
) -> None:
    one, other = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other")
    memory, writer = open_with_slack(one, create=True)
    append(writer, memory, before)
    mark, then = json.loads(json.dumps(writer.mark())), contents(memory)
    append(writer, memory, lost)

    memory, writer = open_with_slack(one)  # Another process, after a kill.
    assert writer.roll_back(mark, OWN)
    assert contents(memory) == then
    append(writer, memory, after)

    straight, writer = open_with_slack(other, create=True)
    append(writer, straight, [*before, *after])
    assert contents(memory) == contents(straight)


def test_a_roll_back_is_refused_once_items_of_the_mark_are_overwritten(tmp_path: Path) -> None:
    memory, writer = open_with_slack(tmp_path, create=True)
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


def test_full_files_without_slack_refuse_a_roll_back(tmp_path: Path) -> None:
    memory, writer = open_with_slack(tmp_path, create=True, slack=0)
    append(writer, memory, [1] * CAPACITY)
    mark = writer.mark()
    append(writer, memory, [1])
    memory, writer = open_with_slack(tmp_path)
    assert memory.slack == 0, "slack is that of the files"
    assert not writer.roll_back(mark, OWN)


def test_a_roll_back_never_forgets_items_of_other_actors(tmp_path: Path) -> None:
    memory, writer = open_with_slack(tmp_path, create=True)
    append(writer, memory, [2])
    mark = writer.mark()
    append(writer, memory, [2], OTHER)
    append(writer, memory, [2])
    assert not writer.roll_back(mark, OWN)
    mark = writer.mark()
    append(writer, memory, [2])
    assert writer.roll_back(mark, OWN)
    assert memory.committed == 6


def test_a_roll_back_to_items_that_a_power_cut_took_is_refused(tmp_path: Path) -> None:
    memory, writer = open_with_slack(tmp_path / "one", create=True)
    append(writer, memory, [2, 2])
    mark = writer.mark()
    memory, writer = open_with_slack(tmp_path / "other", create=True)
    append(writer, memory, [2])
    assert not writer.roll_back(mark, OWN)


@pytest.mark.parametrize("writes", range(8))
@pytest.mark.parametrize("before", [0, CAPACITY + 3])
def test_a_roll_back_that_is_killed_anywhere_is_done_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, writes: int
) -> None:
    memory, writer = open_with_slack(tmp_path, create=True)
    append(writer, memory, [1] * before)
    mark, then = writer.mark(), contents(memory)
    append(writer, memory, [3, 2])
    with killed_after(writes, monkeypatch), pytest.raises(KilledError):
        writer.roll_back(mark, OWN)
    memory, writer = open_with_slack(tmp_path)
    assert writer.roll_back(mark, OWN)
    assert contents(memory) == then
    append(writer, memory, [1, 1])
    check_linked(memory)


@pytest.mark.parametrize("writes", range(8))
@pytest.mark.parametrize("before", [4, CAPACITY + 3])
def test_after_a_roll_back_that_is_killed_anywhere_a_writer_that_only_goes_on_links_no_row_that_was_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, writes: int
) -> None:
    memory, writer = open_with_slack(tmp_path, create=True)
    append(writer, memory, [1] * before)
    mark = writer.mark()
    append(writer, memory, [3, 2])
    with killed_after(writes, monkeypatch), pytest.raises(KilledError):
        writer.roll_back(mark, OWN)
    memory, writer = open_with_slack(tmp_path)
    check_links(memory)
    for rows_of_one_lane in (5, 1):
        items = linked_rows(memory.committed, rows_of_one_lane)
        items["lane"][:] = 9
        writer.append(items, rows_of_one_lane, OWN, writer.last_seq(OWN) + 1)
        check_links(memory)


def append_pictures(memory: ReplayMemory, writer: ReplayWriter, count: int = 40) -> None:
    """Store the next rows of a film in one batch; 40 of them are written to the file of their column."""
    n = np.arange(memory.committed, memory.committed + count)
    writer.append(picture_rows(n), count, incarnation=OWN, seq=writer.last_seq(OWN) + 1)


def test_large_batches_go_round_a_ring_in_every_pass_of_this_process_and_of_the_next(tmp_path: Path) -> None:
    memory = ReplayMemory(tmp_path / "replay", FILM, 100, create=True)
    seen = ReplayMemory(tmp_path / "replay", FILM, 100, create=False, writable=False)
    for _ in range(2):
        writer = ReplayWriter(memory)
        for count in (40, 40, 3, 40, 40, 40, 40, 3, 40, 40):  # Across the end in each of three passes.
            append_pictures(memory, writer, count)
            check_pictures(read_all(seen))
            check_links(memory)
            assert (batch := memory.read_last_batch()) is not None
            assert seen.compute_checksum(batch) == batch.checksum


def test_a_full_disk_is_an_error_before_a_large_batch_counts_and_with_room_the_same_batch_is_stored(disk: Disk) -> None:
    memory = ReplayMemory(disk.path / "replay", FILM, 100, create=True)
    writer = ReplayWriter(memory)
    append_pictures(memory, writer)
    column = disk.path / "replay" / "column-obs"
    with column.open("r+b") as file:  # A file without its blocks, as a sparse copy is.
        file.truncate(40 << 10)
        file.truncate(100 << 10)
    disk.fill()
    with pytest.raises(OSError, match="No space left on device"):
        append_pictures(memory, writer)
    assert (memory.committed, writer.last_seq(OWN)) == (40, 1)
    check_pictures(read_all(memory))
    disk.clear()
    append_pictures(memory, writer)
    assert (memory.committed, writer.last_seq(OWN)) == (80, 2)
    check_pictures(read_all(memory))
    check_links(memory)


def sink_of(memory: ReplayMemory) -> LocalSink:
    return LocalSink(memory, ValueRules(memory.schema, {}))


def test_items_are_stored_in_order_and_a_later_sink_goes_on_after_them(tmp_path: Path) -> None:
    memory, _ = make(tmp_path)
    sink = sink_of(memory)
    sink.push(rows(0, 3))
    sink.push(rows(3, 1))
    sink_of(memory).push(rows(4, 2))
    assert readable(memory) == [0, 1, 2, 3, 4, 5]
    assert len(set(memory.find_origins(np.arange(6)).tolist())) == 1, "all of one incarnation"


def test_other_columns_and_values_that_are_refused_store_nothing(tmp_path: Path) -> None:
    memory, _ = make(tmp_path)
    sink, items = sink_of(memory), rows(0, 2)
    with pytest.raises(SchemaMismatchError):
        sink.push({"n": items["n"]})
    items["pair"][1, 0] = np.nan
    with pytest.raises(RefusedError, match="column 'pair': expected finite values, found nan in row 1"):
        sink.push(items)
    assert memory.committed == 0


def test_items_stored_since_a_mark_are_forgotten_and_others_stored_in_their_place(tmp_path: Path) -> None:
    memory, _ = make(tmp_path)
    sink = sink_of(memory)
    sink.push(rows(0, 3))
    mark = sink.mark()
    sink.push(rows(70, 2))
    sink = sink_of(memory)  # Of another life.
    assert sink.roll_back(mark)
    assert readable(memory) == [0, 1, 2]
    sink.push(rows(3, 2))
    assert readable(memory) == [0, 1, 2, 3, 4]


def test_rows_stored_after_a_roll_back_continue_the_rows_before_it(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True)
    sink = sink_of(memory)
    sink.push(linked_rows(0, 20))
    mark = sink.mark()
    for row in range(20, 29):
        sink.push(linked_rows(row, 1))
    assert sink.roll_back(mark)
    check_linked(memory)
    for row in range(20, 29):
        sink.push(linked_rows(row, 1))
    check_linked(memory)


def test_a_push_without_rows_stores_no_batch(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True)
    sink = sink_of(memory)
    assert sink.takes(1)
    sink.push(linked_rows(0, 0))
    sink.push(linked_rows(0, 3))
    assert (memory.committed, int(memory.header.batches)) == (3, 1)


def test_lanes_of_another_incarnation_are_other_lanes(tmp_path: Path) -> None:
    memory = open_linked(tmp_path, create=True)
    sink_of(memory).push(linked_rows(0, 3))
    ReplayWriter(memory).append(linked_rows(3, 3), 3, incarnation=2, seq=1)
    assert memory.drawable == 0
