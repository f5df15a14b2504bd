from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.data import Snapshot
from common.process.clocks import Deadline
from learner.replay.memory import ReplayMemory
from learner.replay.reader import Draws, NothingToDrawError
from learner.replay.uniform import UniformReplay
from learner.replay.writer import ReplayWriter
from learner.views.items import SelfContained
from learner.views.sequences import Sequences
from learner.views.transitions import Transitions
from tests.conftest import PATIENCE, wait_for
from tests.learner.replay.memories import CAPACITY, WIDE, check_wide, wide_rows, writing
from tests.learner.views.lanes import SCHEMA as LANES
from tests.learner.views.lanes import Lanes

VIEW = SelfContained(WIDE)


def filled(directory: Path, count: int) -> ReplayMemory:
    memory = ReplayMemory(directory / "replay", WIDE, CAPACITY, create=True)
    writer = ReplayWriter(memory)
    for seq, start in enumerate(range(0, count, 10), start=1):
        writer.append(wide_rows(start, 10), 10, incarnation=1, seq=seq)
    return memory


def test_every_item_is_equally_likely(tmp_path: Path) -> None:
    replay = UniformReplay(filled(tmp_path, 20), VIEW, seed=0)
    drawn = np.concatenate([replay.batch(100)["n"].copy() for _ in range(200)])
    counts = np.bincount(drawn, minlength=20)
    expected = len(drawn) / 20
    assert float(((counts - expected) ** 2 / expected).sum()) < 43.8  # chi-square, 19 degrees, p = 0.001


def test_only_items_that_are_still_there_are_drawn(tmp_path: Path) -> None:
    replay = UniformReplay(filled(tmp_path, 2000), VIEW, seed=0)
    drawn = replay.batch(5000)["n"]
    assert drawn.min() >= 2000 - CAPACITY
    assert drawn.max() == 1999
    assert len(replay) == CAPACITY
    assert replay.inserted == 2000
    assert replay.sampled == 5000


def test_the_same_seed_draws_the_same_items(tmp_path: Path) -> None:
    memory = filled(tmp_path, 100)
    first, second, other = (UniformReplay(memory, VIEW, seed).batch(50)["n"].tolist() for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_drawing_from_nothing_is_an_error_not_a_crash(tmp_path: Path) -> None:
    with pytest.raises(IndexError, match="nothing to draw from"):
        UniformReplay(filled(tmp_path, 0), VIEW, seed=0).batch(1)


def test_small_batches_are_gathered_sixteen_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, sizes = UniformReplay(filled(tmp_path, 200), VIEW, seed=3), list[int]()
    make_draws = replay.make_draws

    def count_and_make_draws(size: int) -> Draws:
        sizes.append(size)
        return make_draws(size)

    monkeypatch.setattr(replay, "make_draws", count_and_make_draws)
    drawn = [replay.batch(8)["n"].tolist() for _ in range(33)]
    assert sizes == [8, 128, 128], "how much a draw takes is known after the first batch"
    assert len({tuple(batch) for batch in drawn}) == 33
    assert replay.sampled == 33 * 8


def test_batches_gathered_ahead_are_dropped_when_many_items_have_come(tmp_path: Path) -> None:
    memory = filled(tmp_path, 300)
    replay, writer = UniformReplay(memory, VIEW, seed=0), ReplayWriter(memory)
    for _ in range(2):  # How much a draw takes is known after the first batch: the second is gathered with 15 more.
        replay.batch(8)
    writer.append(wide_rows(300, 100), 100, incarnation=2, seq=1)
    assert max(replay.batch(8)["n"].max() for _ in range(15)) >= 300


def test_a_restored_replay_gives_the_batches_that_the_saved_one_had_gathered_ahead(tmp_path: Path) -> None:
    memory = filled(tmp_path, 200)
    saved, restored = UniformReplay(memory, VIEW, seed=0), UniformReplay(memory, VIEW, seed=1)
    for _ in range(5):
        saved.batch(8)
    state = saved.state()
    restored.restore(Snapshot(state.values, dict(sorted(state.arrays.items()))))
    assert list(restored.batch(8)) == list(saved.batch(8)) == [column.name for column in WIDE.columns]
    assert [restored.batch(8)["n"].tolist() for _ in range(20)] == [saved.batch(8)["n"].tolist() for _ in range(20)]


def test_no_torn_row_is_ever_drawn_while_another_process_overwrites(tmp_path: Path) -> None:
    memory = ReplayMemory(tmp_path / "replay", WIDE, CAPACITY, create=True)
    with writing(tmp_path, "wide"):
        wait_for(lambda: len(memory) > 256, "the first rows")
        replay, before = UniformReplay(memory, VIEW, seed=0), memory.committed
        draws, deadline = 0, Deadline(PATIENCE)
        while draws < 500 or memory.committed < before + 100 * CAPACITY:  # Rows are overwritten meanwhile.
            assert not deadline.passed(), f"{draws} draws, {memory.committed - before} rows"
            draws += 1
            check_wide(replay.batch(256))


# Views of which few rows, or none, can begin a draw.


def test_every_row_at_which_a_draw_can_begin_is_equally_likely(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(4, 6, 1)
    view = Transitions(LANES)
    replay = UniformReplay(lanes.memory, view, seed=0)
    able = lanes.drawable(view)
    assert able == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 12]
    drawn = np.concatenate([replay.batch(1000)["obs/at"].copy() for _ in range(10)])
    counts = np.bincount(drawn, minlength=14)
    expected = len(drawn) / len(able)
    assert counts[able].sum() == len(drawn)
    assert float(((counts[able] - expected) ** 2 / expected).sum()) < 29.6  # chi-square, 10 degrees, p = 0.001


def test_rows_are_found_where_few_can_be_drawn(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(500, ends=False)
    replay = UniformReplay(lanes.memory, Sequences(LANES, length=40, period=200), seed=0)
    batch = replay.batch(64)
    assert set(batch["obs/at"][:, 0].tolist()) == {0, 200, 400}


def test_where_no_row_can_be_drawn_yet_the_search_ends(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(30, ends=False)
    replay = UniformReplay(lanes.memory, Sequences(LANES, length=40), seed=0)
    assert len(replay) == 29
    with pytest.raises(NothingToDrawError, match="nothing to draw from yet"):
        replay.batch(64)


def test_a_restored_replay_of_sequences_draws_what_the_saved_one_would_have_drawn(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play_in_turn([30, 7, 50])
    view = Sequences(LANES, length=5)
    saved, restored = UniformReplay(lanes.memory, view, seed=0), UniformReplay(lanes.memory, view, seed=1)
    for _ in range(4):
        saved.batch(3)
    restored.restore(saved.state())
    for _ in range(40):
        expected, found = saved.batch(3), restored.batch(3)
        assert list(expected) == list(found)
        for name, column in expected.items():
            np.testing.assert_array_equal(found[name], column)
