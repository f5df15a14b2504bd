from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config.replay_config import PrioritizedConfig
from common.data import PRIORITY, Array, Column, Schema
from common.errors import CheckpointError, ConfigError
from common.process.clocks import Deadline
from learner.replay.memory import ReplayMemory
from learner.replay.prioritized import FAN, TOP, MinTree, PrioritizedReplay, SumTree
from learner.replay.reader import NothingToDrawError, ReplayReader
from learner.replay.uniform import UniformReplay
from learner.replay.view import View
from learner.replay.writer import ReplayWriter
from learner.views.items import SelfContained
from learner.views.sequences import Sequences
from learner.views.transitions import Transitions
from tests.conftest import PATIENCE, wait_for
from tests.learner.replay.memories import CAPACITY, WIDE, check_wide, writing
from tests.learner.replay.test_reader import overwrite_while_gathering
from tests.learner.views.lanes import SCHEMA as LINKED
from tests.learner.views.lanes import Lanes

SCHEMA = Schema((Column("n", "<i8"),))


class Ring:
    """A replay of items that hold their own index, and the one who writes them."""

    def __init__(self, directory: Path, capacity: int, schema: Schema = SCHEMA) -> None:
        self.memory = ReplayMemory(directory / "replay", schema, capacity, create=True)
        self._writer = ReplayWriter(self.memory)
        self._seq = 0

    def write(self, count: int, **more: Array) -> None:
        self._seq += 1
        items = {"n": np.arange(self.memory.committed, self.memory.committed + count), **more}
        self._writer.append(items, count, incarnation=1, seq=self._seq)

    def replay(self, seed: int = 0, n_opts: int = 1000, **config: Any) -> PrioritizedReplay:
        return PrioritizedReplay(
            self.memory, SelfContained(self.memory.schema), PrioritizedConfig(**config), seed, n_opts
        )


def ring_of(directory: Path, count: int, capacity: int = 1000) -> Ring:
    ring = Ring(directory, capacity)
    ring.write(count)
    return ring


def tell(replay: PrioritizedReplay, errors: dict[int, float]) -> None:
    index, td_error = zip(*errors.items(), strict=True)
    replay.update_priority(np.array(index), np.array(td_error, np.float32))


def drawn(replay: PrioritizedReplay, size: int = 200) -> set[int]:
    """Which items a batch has, after seeing that its indices are theirs."""
    batch = replay.batch(size)
    np.testing.assert_array_equal(batch["index"], batch["n"])
    return set(batch["n"].tolist())


# Priorities.


def test_an_item_is_drawn_in_proportion_to_its_priority(tmp_path: Path) -> None:
    replay = ring_of(tmp_path, 20).replay(alpha=0.6)
    replay.batch(1)
    tell(replay, {i: float(i + 1) for i in range(20)})
    counts = np.bincount([int(replay.batch(1)["n"][0]) for _ in range(4000)], minlength=20)
    priority = np.arange(1, 21) ** 0.6
    expected = 4000 * priority / priority.sum()
    assert float(((counts - expected) ** 2 / expected).sum()) < 43.8  # chi-square, 19 degrees, p = 0.001


def test_a_batch_is_stratified_so_that_no_item_is_far_from_its_share(tmp_path: Path) -> None:
    replay = ring_of(tmp_path, 20).replay(alpha=1.0)
    replay.batch(1)
    tell(replay, {i: float(i + 1) for i in range(20)})
    for _ in range(20):
        counts = np.bincount(replay.batch(512)["n"], minlength=20)
        assert (np.abs(counts - 512 * np.arange(1, 21) / 210) < 2).all()


def test_with_alpha_0_every_item_is_as_likely_and_weighs_the_same(tmp_path: Path) -> None:
    replay = ring_of(tmp_path, 10).replay(alpha=0.0)
    replay.batch(1)
    tell(replay, {0: 1e6, 1: 0.0})
    batch = replay.batch(100)
    assert np.bincount(batch["n"]).tolist() == [10] * 10
    assert (batch["weight"] == 1.0).all()


def test_the_sign_of_an_error_does_not_matter_and_an_item_without_one_stays_in_play(tmp_path: Path) -> None:
    replay = ring_of(tmp_path, 4).replay(alpha=1.0, beta_0=1.0)
    replay.batch(1)
    tell(replay, {0: -3.0, 1: 3.0, 2: 0.0, 3: 0.0})
    assert np.bincount(replay.batch(100)["n"]).tolist() == [50, 50]
    tell(replay, {0: 0.0, 1: 0.0})
    assert drawn(replay) == {0, 1, 2, 3}


def test_a_new_item_has_the_highest_priority_so_far(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, 10)
    replay = ring.replay(alpha=1.0)
    replay.batch(1)
    tell(replay, dict.fromkeys(range(10), 0.5))
    tell(replay, {3: 4.0})
    tell(replay, {3: 0.5})
    ring.write(5)
    counts = np.bincount(replay.batch(2500)["n"])
    np.testing.assert_allclose(counts, [50] * 10 + [400] * 5, atol=1)


def test_an_item_begins_with_the_priority_that_came_with_it(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 100, SCHEMA.plus(PRIORITY))
    ring.write(3, priority=np.array([1.0, 3.0, 6.0], np.float32))
    replay = ring.replay(alpha=1.0)
    np.testing.assert_allclose(np.bincount(replay.batch(1000)["n"]), [100, 300, 600], atol=1)
    tell(replay, {0: 3.0})
    np.testing.assert_allclose(np.bincount(replay.batch(1200)["n"]), [300, 300, 600], atol=1)
    assert "priority" not in replay.batch(1), "it is for the replay, not for the agent"


def test_the_same_seed_draws_the_same_items(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, 500)
    first, second, other = (ring.replay(seed).batch(50)["n"].tolist() for seed in (3, 3, 4))
    assert first == second
    assert first != other


# Weights.


def by_hand(errors: Array, alpha: float, beta: float) -> Array:
    """``(N P)^-beta``, before it is divided by a maximum."""
    priority = errors**alpha
    weights: Array = (len(errors) * priority / priority.sum()) ** -beta
    return weights


@pytest.mark.parametrize(("alpha", "beta"), [(0.6, 0.4), (1.0, 1.0), (0.5, 0.0)])
@pytest.mark.parametrize("normalize", ["all", "batch"])
def test_weights_are_those_of_the_formula(tmp_path: Path, alpha: float, beta: float, normalize: str) -> None:
    errors = np.array([0.01, 1.0, 2.0, 4.0, 1000.0])
    replay = ring_of(tmp_path, 5).replay(alpha=alpha, beta_0=beta, normalize=normalize, n_opts=10**15)
    replay.batch(1)
    tell(replay, dict(enumerate(errors.tolist())))
    for size in (3, 5, 50):
        batch = replay.batch(size)
        weights = by_hand(errors, alpha, beta)
        largest = weights.max() if normalize == "all" else weights[batch["n"]].max()
        np.testing.assert_allclose(batch["weight"], weights[batch["n"]] / largest, rtol=1e-5)
        assert batch["weight"].dtype == np.float32
        assert batch["index"].dtype == np.int64


def test_beta_rises_linearly_to_1_with_the_updates_of_the_run_and_stays_there(tmp_path: Path) -> None:
    replay = ring_of(tmp_path, 2).replay(alpha=1.0, beta_0=0.2, n_opts=4)
    replay.batch(1)
    for beta in (0.4, 0.6, 0.8, 1.0, 1.0, 1.0):
        tell(replay, {0: 1.0, 1: 16.0})
        assert replay.beta() == pytest.approx(beta)
        batch = replay.batch(20)
        np.testing.assert_allclose(batch["weight"][batch["n"] == 1], 16**-beta, rtol=1e-5)


# A ring that is written to.


def test_only_items_that_are_still_there_are_drawn(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, 60, capacity=100)
    replay = ring.replay()
    assert drawn(replay) == set(range(60))
    ring.write(70)
    assert drawn(replay) == set(range(30, 130))
    for _ in range(5):  # Further than once around between two draws.
        ring.write(99)
    assert drawn(replay) == set(range(525, 625))
    assert (len(replay), replay.inserted, replay.sampled) == (100, 625, 600)


def test_rows_that_are_being_overwritten_are_not_drawn_until_they_are_new_items(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, 100, capacity=100)
    replay = ring.replay()
    assert drawn(replay) == set(range(100))
    tell(replay, dict.fromkeys(range(30), 0.5))
    ring.memory.header.oldest = 30  # What a writer does first.
    assert drawn(replay) == set(range(30, 100))
    tell(replay, dict.fromkeys(range(30), 0.2))
    assert drawn(replay) == set(range(30, 100))
    assert (replay.batch(50)["weight"] == 1.0).all(), "the least priority is one of those that can be drawn"
    ring.write(30)
    assert drawn(replay) == set(range(30, 130))


def test_rows_that_begin_to_be_overwritten_while_they_are_gathered_are_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = ring_of(tmp_path, 100, capacity=100)
    replay = ring.replay(alpha=1.0, beta_0=1.0)
    replay.batch(1)
    tell(replay, {i: float(i + 1) for i in range(100)})
    overwrite_while_gathering(monkeypatch, lambda: ring.write(50))
    batch = replay.batch(500)
    np.testing.assert_array_equal(batch["index"], batch["n"])
    assert batch["n"].min() >= 50
    assert batch["n"].max() >= 100
    priority = np.minimum(batch["n"] + 1.0, 100.0)  # The new ones have the highest.
    np.testing.assert_allclose(batch["weight"], 51 / priority, rtol=1e-5)


def test_an_item_that_is_overwritten_while_others_are_drawn_again_keeps_the_weight_it_was_drawn_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = ring_of(tmp_path, 100, capacity=100)
    replay = ring.replay(alpha=1.0, beta_0=1.0)
    replay.batch(1)
    tell(replay, {i: float(i + 1) for i in range(100)})
    look, calls = ReplayReader.look, iter(range(9))

    def look_while_the_writer_goes_on(reader: ReplayReader) -> None:
        if next(calls) == 0:
            look(reader)
            ring.write(50)
            return
        ring.write(25)
        look(reader)

    monkeypatch.setattr(ReplayReader, "look", look_while_the_writer_goes_on)
    batch = replay.batch(500)
    assert next(calls) == 2
    assert 50 <= batch["n"].min() < 75, "gathered in time, gone now"
    priority = np.minimum(batch["n"] + 1.0, 100.0)
    np.testing.assert_allclose(batch["weight"], priority.min() / priority, rtol=1e-5)


def test_an_error_of_an_item_that_is_gone_does_not_count_for_the_one_in_its_slot(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, 100, capacity=100)
    replay = ring.replay()
    old = replay.batch(100)
    ring.write(60)
    replay.batch(1)
    replay.update_priority(old["index"], np.zeros(100, np.float32))
    counts = np.bincount(replay.batch(6000)["n"], minlength=160)
    np.testing.assert_allclose(counts, [0] * 100 + [100] * 60, atol=1)


def test_while_another_process_overwrites_indices_name_their_items_and_late_errors_hit_nobody(tmp_path: Path) -> None:
    memory = ReplayMemory(tmp_path / "replay", WIDE, CAPACITY, create=True)
    with writing(tmp_path, "wide"):
        wait_for(lambda: len(memory) > 256, "the first rows")
        replay = PrioritizedReplay(memory, SelfContained(WIDE), PrioritizedConfig(), seed=0, n_opts=1000)
        gone, before = replay.batch(256)["index"], memory.committed
        wait_for(lambda: memory.committed > before + 2 * CAPACITY, "all of them are overwritten")
        draws, deadline = 0, Deadline(PATIENCE)
        while draws < 400 or memory.committed < before + 100 * CAPACITY:
            assert not deadline.passed(), f"{draws} draws, {memory.committed - before} rows"
            draws += 1
            batch = replay.batch(256)
            np.testing.assert_array_equal(batch["n"], batch["index"])
            check_wide(batch)
            assert (batch["weight"] == 1.0).all(), "an item nobody spoke of has another priority"
            replay.update_priority(gone, np.zeros(256, np.float32))


# Rows that are linked.


def linked(directory: Path, view: View, capacity: int = 1000) -> tuple[Lanes, PrioritizedReplay]:
    lanes = Lanes(directory, capacity)
    return lanes, PrioritizedReplay(lanes.memory, view, PrioritizedConfig(alpha=1.0), 0, 1000)


def begun(replay: PrioritizedReplay, size: int = 200) -> list[int]:
    return sorted(set(replay.batch(size)["index"].tolist()))


def test_a_row_gets_its_priority_when_a_draw_can_begin_there(tmp_path: Path) -> None:
    view = Transitions(LINKED, discount_factor=0.9, n=2)
    lanes, replay = linked(tmp_path, view)
    with pytest.raises(NothingToDrawError):
        replay.batch(4)
    lanes.play(2, ends=False)
    with pytest.raises(NothingToDrawError):
        replay.batch(4)
    for length, lane in ((3, 1), (5, 2), (1, 1)):
        lanes.play(length, lane=lane)
        assert begun(replay) == lanes.drawable(view)
    tell(replay, {2: 1000.0})
    lanes.play(2, ends=False, lane=3)
    assert (replay.batch(100)["index"] == 2).mean() > 0.4, "later rows leave the priorities of others as they are"


def test_prioritised_sequences_across_episodes_are_found_once_they_are_whole(tmp_path: Path) -> None:
    view = Sequences(LINKED, length=3, across=True)
    lanes, replay = linked(tmp_path, view)
    lanes.play(2, 1, 4, ends=False)
    assert begun(replay, 200) == lanes.drawable(view)
    assert 400 <= replay.sampled < 600, "of the three rows of a sequence, a final row is no step"


def test_rows_that_can_no_longer_be_drawn_are_passed_over(tmp_path: Path) -> None:
    view = Transitions(LINKED, 3)
    lanes, replay = linked(tmp_path, view, capacity=12)
    for _ in range(10):
        lanes.play(6)
        assert begun(replay) == lanes.drawable(view)
        replay.update_priority(index := replay.batch(20)["index"], np.ones(len(index), np.float32))


def test_a_resumed_replay_of_linked_rows_draws_what_the_one_before_would_have_drawn(tmp_path: Path) -> None:
    view = Transitions(LINKED, discount_factor=0.9, n=3)
    lanes, before = linked(tmp_path, view, capacity=60)
    for _ in range(6):
        lanes.play(9, 4, ends=False)
        batch = before.batch(16)
        before.update_priority(batch["index"], batch["reward"])
    after = PrioritizedReplay(lanes.memory, view, PrioritizedConfig(alpha=1.0), 1, 1000)
    after.restore(before.state())
    for _ in range(6):
        lanes.play(9, 4)
        for replay in (before, after):
            replay.update_priority(replay.batch(8)["index"], np.arange(8.0))
        expected, found = before.batch(16), after.batch(16)
        for name, column in expected.items():
            np.testing.assert_array_equal(found[name], column)


# What is refused.


def test_drawing_from_nothing_is_an_error_not_a_crash(tmp_path: Path) -> None:
    with pytest.raises(IndexError, match="nothing to draw from"):
        Ring(tmp_path, 10).replay().batch(1)


@pytest.mark.parametrize("column", [Column("weight", "<f4"), Column("index", "<i8"), Column("priority", "<f4", (2,))])
def test_items_with_columns_of_reserved_names_are_refused(tmp_path: Path, column: Column) -> None:
    ring = Ring(tmp_path, 10, Schema((*SCHEMA.columns, column)))
    with pytest.raises(ConfigError, match=rf"rows have a column '{column.name} .*give the column another name"):
        ring.replay()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_error_that_is_not_finite_is_refused_and_changes_nothing(tmp_path: Path, bad: float) -> None:
    replay = ring_of(tmp_path, 10).replay()
    replay.batch(1)
    with pytest.raises(ValueError, match=rf"expected finite errors, found {bad}; has training diverged"):
        tell(replay, {1: 5.0, 2: bad})
    assert (replay.batch(50)["weight"] == 1.0).all()
    assert replay.beta() == 0.4


def test_an_index_that_was_not_drawn_or_has_no_error_is_refused(tmp_path: Path) -> None:
    replay = ring_of(tmp_path, 10).replay()
    replay.batch(1)
    with pytest.raises(ValueError, match=r"expected indices below 10 .* up to 10 and \[1\] errors"):
        tell(replay, {10: 1.0})
    with pytest.raises(ValueError, match=r"found \[2\] up to 4 and \[1\] errors"):
        replay.update_priority(np.array([3, 4]), np.zeros(1, np.float32))


# Resuming.


def learnt(ring: Ring) -> PrioritizedReplay:
    """A replay that has seen errors and is some way through its schedule."""
    replay = ring.replay(n_opts=10)
    for error in (1.0, 9.0):
        tell(replay, {int(i): error * int(i) for i in replay.batch(32)["index"]})
    return replay


def test_a_resumed_replay_draws_what_the_one_before_would_have_drawn(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, 70, capacity=100)
    before, resumed = learnt(ring), ring.replay(seed=1, n_opts=10)
    resumed.restore(before.state())
    ring.write(50)  # Some of them take the place of items that had a priority.
    expected, found = before.batch(64), resumed.batch(64)
    assert (resumed.sampled, resumed.beta()) == (before.sampled, before.beta())
    for name in ("n", "index", "weight"):
        np.testing.assert_array_equal(found[name], expected[name])


def test_a_resumed_replay_that_has_been_overwritten_meanwhile_holds_only_new_items(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, 100, capacity=100)
    before, resumed = learnt(ring), ring.replay()
    for _ in range(3):
        ring.write(50)
    resumed.restore(before.state())
    assert min(drawn(resumed)) >= 150


def test_a_uniform_replays_state_is_refused(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, 10)
    with pytest.raises(CheckpointError, match="expected priorities, found no 'priorities'"):
        ring.replay().restore(UniformReplay(ring.memory, SelfContained(SCHEMA), 0).state())


SIZES = [1, 2, 100, TOP, TOP + 1, FAN * TOP + 5]  # A row; two levels, also with a ragged end; three.
VALUES = st.floats(0, 1e6).filter(lambda value: value == 0 or value > 1e-6)
seeds = st.integers(0, 2**32 - 1)


def filled(size: int, values: Array) -> SumTree:
    tree = SumTree(size)
    tree.set(np.arange(size), values)
    return tree


def slow_find(values: Array, shares: Array) -> Array:
    """What the tree is for, in one line over all slots."""
    slots: Array = np.cumsum(values).searchsorted(shares * values.sum(), side="right")
    return slots


@pytest.mark.parametrize("size", SIZES)
def test_slots_are_found_where_the_running_sum_passes_their_share(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.integers(0, 4, size).astype(np.float64)  # Whole numbers add up exactly, in any order.
    values[rng.integers(size)] = 1.0
    shares = rng.random(1000)
    np.testing.assert_array_equal(filled(size, values).find(shares), slow_find(values, shares))


@given(st.sampled_from(SIZES), st.lists(st.tuples(seeds, st.integers(1, 50)), min_size=1, max_size=5), seeds)
def test_after_any_changes_it_is_the_tree_of_the_values_as_they_are(
    size: int, changes: list[tuple[int, int]], draw: int
) -> None:
    sums, minima, values = SumTree(size), MinTree(size), np.zeros(size)
    values[0] = 1.0
    sums.set(np.array([0]), 1.0)
    minima.set(np.array([0]), 1.0)
    for seed, n in changes:
        rng = np.random.default_rng(seed)
        slots = np.unique(rng.integers(size, size=n))
        rng.shuffle(slots)
        values[slots] = rng.integers(1, 9, len(slots))
        sums.set(slots, values[slots])
        minima.set(slots, values[slots])
    shares = np.random.default_rng(draw).random(20)
    np.testing.assert_array_equal(sums.find(shares), slow_find(values, shares))
    np.testing.assert_array_equal(sums.values, values)
    assert minima.find_least() == values[values > 0].min()


@given(st.lists(VALUES, min_size=1, max_size=60).filter(any), st.sampled_from([60, TOP + 60]), seeds)
def test_a_slot_of_value_0_is_never_found_whatever_rounding_does(values: list[float], size: int, seed: int) -> None:
    everywhere = np.zeros(size)
    places = np.random.default_rng(seed).choice(size, len(values), replace=False)
    everywhere[places] = values
    borders = everywhere[places].cumsum() / everywhere.sum(), everywhere.cumsum() / everywhere.sum()
    on = np.concatenate([[0.0, 1.0], *borders])
    shares = np.concatenate([on, np.nextafter(on, 0), np.nextafter(on, 1)]).clip(0, 1)
    assert (everywhere[filled(size, everywhere).find(shares)] > 0).all()


def test_a_slot_that_is_cleared_counts_no_more() -> None:
    sums, minima = SumTree(10), MinTree(10)
    for tree in (sums, minima):
        tree.set(np.arange(3), np.array([1.0, 2.0, 3.0]))
        tree.clear(np.array([0]))
    assert sums.find(np.array([0.0, 0.39, 0.41])).tolist() == [1, 1, 2]
    assert minima.find_least() == 2.0


def test_without_values_there_is_no_least() -> None:
    assert MinTree(10).find_least() == math.inf


def test_the_last_value_of_a_slot_named_twice_counts_and_no_slots_change_nothing() -> None:
    sums = SumTree(4)
    sums.set(np.array([2, 1, 2]), np.array([9.0, 1.0, 3.0]))
    sums.set(np.array([], np.int64), np.array([]))
    assert sums.values.tolist() == [0.0, 1.0, 3.0, 0.0]
    assert sums.find(np.array([0.24, 0.26])).tolist() == [1, 2]


def test_a_million_changes_leave_no_rounding_behind() -> None:
    """Border's tree adds differences; what they leave behind is drawn from."""
    size, rng = TOP + 100, np.random.default_rng(0)
    sums = SumTree(size)
    for _ in range(1000):
        sums.set(rng.integers(size, size=1000), rng.random(1000) * 1e6)
    sums.clear(np.arange(size))
    sums.set(np.array([7]), 1e-6)
    assert sums.find(rng.random(100)).tolist() == [7] * 100
