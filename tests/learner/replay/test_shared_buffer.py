"""What all replay buffers over shared memory have in common: items that are never drawn, and those drawn last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config.replay_config import PrioritizedConfig
from common.data import PRIORITY, Column, Schema, Snapshot
from common.errors import PluginError
from learner.replay.memory import ReplayMemory
from learner.replay.mixed_replay import MixedReplay
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.shared_buffer import SharedReplay
from learner.replay.uniform import UniformReplay
from learner.replay.writer import ReplayWriter
from learner.views.items import SelfContained
from tests.learner.replay.memories import SCHEMA, make, rows

BAD = np.array([3, 8, 4])
VIEW = SelfContained(SCHEMA)


def filled(directory: Path, count: int = 10) -> ReplayMemory:
    memory, writer = make(directory)
    for n in range(count):
        writer.append(rows(n, 1), 1, incarnation=1, seq=n + 1)
    return memory


def replays(memory: ReplayMemory) -> list[SharedReplay]:
    kinds = [PrioritizedReplay(memory, VIEW, PrioritizedConfig(normalize=how), 0, 1000) for how in ("all", "batch")]
    return [UniformReplay(memory, VIEW, 0), *kinds]


def drawn(replay: SharedReplay, size: int = 200) -> set[int]:
    return {int(n) for n in replay.batch(size)["n"]}


@pytest.mark.parametrize("kind", range(3))
def test_excluded_items_are_never_drawn(tmp_path: Path, kind: int) -> None:
    memory = filled(tmp_path)
    memory.exclude(BAD)
    memory.exclude(np.array([4, 0]))
    replay = replays(memory)[kind]
    assert drawn(replay) == {1, 2, 5, 6, 7, 9}
    assert set(replay.make_draws(200).index.tolist()) == {1, 2, 5, 6, 7, 9}


@pytest.mark.parametrize("size", [0, -1, 2.5, True, None, "8"], ids=repr)
def test_a_number_of_draws_that_is_none_is_named(tmp_path: Path, size: Any) -> None:
    memory = filled(tmp_path)
    for replay in (*replays(memory), MixedReplay(replays(memory)[0], {}, 0)):
        with pytest.raises(PluginError, match=rf"buffer\.batch: expected a whole number of draws, .* found {size!r}"):
            replay.batch(size)


def test_a_number_of_draws_may_be_numpys_and_the_state_can_be_saved(tmp_path: Path) -> None:
    for replay in replays(filled(tmp_path)):
        assert len(replay.batch(np.int64(5))["n"]) == 5  # type: ignore[arg-type]
        json.dumps(replay.state().values)


@pytest.mark.parametrize("kind", range(3))
def test_a_restored_replay_draws_no_excluded_item(tmp_path: Path, kind: int) -> None:
    memory = filled(tmp_path)
    before = replays(memory)[kind]
    before.batch(2)
    state = before.state()
    memory.exclude(BAD)
    after = replays(memory)[kind]
    after.restore(Snapshot(state.values, state.arrays))
    assert not {int(n) for _ in range(50) for n in after.batch(2)["n"]} & {3, 4, 8}
    if isinstance(after, PrioritizedReplay):
        assert not {*after.draw(200)[0].tolist()} & {*BAD.tolist()}, "no draw is lost on an item that is never drawn"


@pytest.mark.parametrize("kind", range(3))
def test_where_all_items_are_excluded_there_is_nothing_to_draw_from(tmp_path: Path, kind: int) -> None:
    memory = filled(tmp_path)
    memory.exclude(np.arange(10))
    with pytest.raises(IndexError, match="nothing to draw from"):
        replays(memory)[kind].batch(1)


def test_an_excluded_item_that_is_rolled_back_does_not_exclude_the_one_that_follows(tmp_path: Path) -> None:
    memory = filled(tmp_path, 0)
    writer = ReplayWriter(memory)
    mark = writer.mark()
    writer.append(rows(0, 5), 5, incarnation=1, seq=1)
    memory.exclude(BAD)
    assert writer.roll_back(mark, 1)
    writer.append(rows(0, 5), 5, incarnation=1, seq=2)
    assert drawn(UniformReplay(memory, VIEW, 0)) == {0, 1, 2, 3, 4}


def test_an_item_excluded_for_its_priority_does_not_spoil_those_of_the_others(tmp_path: Path) -> None:
    schema = Schema((Column("n", "<i8"), PRIORITY))
    memory = ReplayMemory(tmp_path / "replay", schema, 10, create=True)
    priorities = np.array([1.0, np.nan, 1.0], np.float32)
    ReplayWriter(memory).append({"n": np.arange(3), "priority": priorities}, 3, incarnation=1, seq=1)
    memory.exclude(np.array([1]))
    assert drawn(PrioritizedReplay(memory, SelfContained(schema), PrioritizedConfig(), 0, 1000)) == {0, 2}


@pytest.mark.parametrize("kind", range(3))
def test_the_indices_of_the_last_batch_are_those_of_its_items(tmp_path: Path, kind: int) -> None:
    replay = replays(filled(tmp_path))[kind]
    assert len(replay.last_drawn) == 0
    for size in (4, 4, 4, 7):  # Several batches of four are gathered at once.
        batch = replay.batch(size)
        assert replay.last_drawn.tolist() == batch["n"].tolist()
    assert replay.sampled == 19


def test_the_indices_of_a_batch_that_was_gathered_before_a_resume_are_not_known(tmp_path: Path) -> None:
    memory = filled(tmp_path)
    before, after = replays(memory)[0], replays(memory)[0]
    for _ in range(2):  # From the second on, several batches are gathered at once.
        before.batch(4)
    after.restore(before.state())
    np.testing.assert_array_equal(after.batch(4)["n"], before.batch(4)["n"])
    assert len(after.last_drawn) == 0


def test_a_buffer_that_is_on_no_device_gives_no_tensors_and_draws_nothing(tmp_path: Path) -> None:
    replay = replays(filled(tmp_path))[0]
    assert replay.tensors(4) is None
    assert replay.sampled == 0
