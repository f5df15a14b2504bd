"""Shares of every batch come from several replays."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.config.replay_config import PrioritizedConfig
from common.errors import CheckpointError, PluginError
from learner.replay.interventions import PrioritizedInterventions, UniformInterventions
from learner.replay.mixed_replay import SHIFT, MixedReplay, Source
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.reader import NothingToDrawError
from learner.replay.shared_buffer import SharedReplay
from learner.replay.uniform import UniformReplay
from learner.views.transitions import Transitions
from tests.learner.views.lanes import WITH_INTERVENTIONS, Lanes


def uniform(lanes: Lanes) -> SharedReplay:
    return UniformReplay(lanes.memory, Transitions(lanes.memory.schema), seed=0)


def prioritized(lanes: Lanes) -> SharedReplay:
    return PrioritizedReplay(lanes.memory, Transitions(lanes.memory.schema), PrioritizedConfig(alpha=1.0), 0, 1000)


def three(directory: Path) -> list[Lanes]:
    """Replays whose rows can be told apart by their numbers: up to 10, 20 and 50."""
    all_lanes = [Lanes(directory / name) for name in ("own", "first", "second")]
    for lanes, length in zip(all_lanes, (10, 20, 50), strict=True):
        lanes.play(length)
    return all_lanes


def test_each_source_gives_its_share_and_draws_know_their_source(tmp_path: Path) -> None:
    own, first, second = map(uniform, three(tmp_path))
    mixed = MixedReplay(own, {"first": Source(0.25, first), "second": Source(0.125, second)}, seed=0)
    batch = mixed.batch(64)
    assert batch["source"].dtype == np.uint8
    assert np.bincount(batch["source"]).tolist() == [40, 16, 8]
    assert all(len(column) == 64 for column in batch.values())
    assert batch["obs/at"][batch["source"] == 0].max() < 10
    assert batch["obs/at"][batch["source"] == 1].max() < 20
    assert mixed.last_drawn.tolist() == batch["obs/at"][batch["source"] == 0].tolist()
    assert (mixed.inserted, mixed.sampled, len(mixed)) == (10, 64, 10)


def test_shares_that_are_no_whole_number_are_right_on_average(tmp_path: Path) -> None:
    own, first, second = map(uniform, three(tmp_path))
    mixed = MixedReplay(own, {"first": Source(0.3, first), "second": Source(0.05, second)}, seed=0)
    counts = sum(np.bincount(mixed.batch(4)["source"], minlength=3) for _ in range(2000))
    np.testing.assert_allclose(counts / 8000, [0.65, 0.3, 0.05], atol=0.01)


def test_priorities_reach_the_replay_that_the_draw_came_from(tmp_path: Path) -> None:
    own, first, second = map(prioritized, three(tmp_path))
    mixed = MixedReplay(own, {"other": Source(0.5, first)}, seed=0)
    batch = mixed.batch(64)
    np.testing.assert_array_equal(batch["index"] >> SHIFT, batch["source"])
    np.testing.assert_array_equal(batch["index"] & (2**SHIFT - 1), batch["obs/at"])
    errors = np.where((batch["source"] == 1) & (batch["obs/at"] == 3), 1e6, 1e-3).astype(np.float32)
    mixed.update_priority(batch["index"], errors)
    after = mixed.batch(64)
    of_own, of_first = (after["obs/at"][after["source"] == i] for i in (0, 1))
    assert (of_first == 3).all()
    assert np.bincount(of_own).max() < 10
    assert len(second.batch(1)["index"]) == 1


@pytest.mark.parametrize("kind", [uniform, prioritized])
def test_a_resumed_replay_draws_what_the_one_before_would_have_drawn(
    tmp_path: Path, kind: Callable[[Lanes], SharedReplay]
) -> None:
    lanes = three(tmp_path)

    def build() -> MixedReplay:
        return MixedReplay(
            kind(lanes[0]), {"first": Source(0.3, kind(lanes[1])), "second": Source(0.2, kind(lanes[2]))}, seed=0
        )

    before, after = build(), build()
    for _ in range(5):
        batch = before.batch(6)
    after.restore(before.state())
    assert after.sampled == before.sampled
    for _ in range(20):
        expected, found = before.batch(6), after.batch(6)
        assert expected.keys() == found.keys()
        for name in batch:
            np.testing.assert_array_equal(found[name], expected[name])


def test_where_one_replay_is_empty_there_is_nothing_to_draw_from(tmp_path: Path) -> None:
    lanes = three(tmp_path)
    with pytest.raises(NothingToDrawError):
        MixedReplay(uniform(Lanes(tmp_path / "empty")), {"other": Source(0.5, uniform(lanes[1]))}, seed=0).batch(4)


def test_the_state_of_other_sources_or_of_another_order_is_refused(tmp_path: Path) -> None:
    own, first, second = map(uniform, three(tmp_path))
    state = MixedReplay(own, {"other": Source(0.25, first)}, seed=0).state()
    both = {"first": Source(0.25, first), "second": Source(0.125, second)}
    refused = re.escape(
        "of ['actors', 'first.dataset', 'second.dataset'], found those of ['actors', 'other.dataset']; a"
    )
    with pytest.raises(CheckpointError, match=rf"replay\.sources: expected the states {refused} resumed run keeps"):
        MixedReplay(own, both, seed=0).restore(state)
    with pytest.raises(CheckpointError, match=r"found those of \['actors', 'second.dataset', 'first.dataset'\]"):
        MixedReplay(own, both, seed=0).restore(MixedReplay(own, dict(reversed(both.items())), seed=0).state())
    with pytest.raises(CheckpointError, match=r"'other\.dataset'\], found those of \['actors'\]; a resumed run keeps"):
        MixedReplay(own, {"other": Source(0.25, first)}, seed=0).restore(own.state())
    with pytest.raises(CheckpointError, match=r"without sources, found one with sources; a resum"):
        own.restore(state)


def test_sources_that_draw_other_columns_are_refused(tmp_path: Path) -> None:
    own, first, _ = three(tmp_path)
    with pytest.raises(PluginError, match=r"replay\.sources: expected the columns .*'index', .*, found \['action'"):
        MixedReplay(prioritized(own), {"other": Source(0.5, uniform(first))}, seed=0).batch(4)


# Sources with interventions.


def intervened(lanes: Lanes) -> SharedReplay:
    return UniformInterventions(lanes.memory, Transitions(WITH_INTERVENTIONS), seed=1)


def intervened_by_priority(lanes: Lanes) -> SharedReplay:
    return PrioritizedInterventions(lanes.memory, Transitions(WITH_INTERVENTIONS), PrioritizedConfig(), 1, 1000)


def actors_and_demos(directory: Path) -> tuple[Lanes, Lanes]:
    """Rows of actors, of which one in ten is intervened, and of a dataset, of which nothing is known."""
    own, demos = (Lanes(directory / name, schema=WITH_INTERVENTIONS) for name in ("own", "demos"))
    own.play(100)
    demos.play(30)
    return own, demos


def test_a_source_of_interventions_draws_them_from_the_rows_of_the_actors(tmp_path: Path) -> None:
    own, _ = actors_and_demos(tmp_path)
    mixed = MixedReplay(uniform(own), {"other": Source(0.5, interventions=intervened(own))}, seed=0)
    batch = mixed.batch(64)
    assert batch["source"].tolist() == [0] * 32 + [1] * 32
    assert set(batch["obs/at"][32:] % 10) == {3}
    assert mixed.last_drawn.tolist() == batch["obs/at"].tolist()


def test_a_dataset_and_interventions_share_a_source_by_their_numbers_of_rows(tmp_path: Path) -> None:
    own, demos = actors_and_demos(tmp_path)
    others = Source(0.5, UniformReplay(demos.memory, Transitions(WITH_INTERVENTIONS), 2), intervened(own))
    mixed = MixedReplay(uniform(own), {"both": others}, seed=0)
    batches = [mixed.batch(8) for _ in range(500)]
    assert all(batch["source"].tolist() == [0] * 4 + [1] * 4 for batch in batches)
    counts = np.array([part.sampled for part in mixed.parts]) / 4000
    np.testing.assert_allclose(counts, [0.5, 0.5 * 30 / 40, 0.5 * 10 / 40], atol=0.01)
    assert mixed.sampled_by_source == [2000, 2000]


@pytest.mark.parametrize("kind", [intervened, intervened_by_priority])
def test_until_somebody_intervenes_the_share_comes_from_the_rows_of_the_actors(
    tmp_path: Path, kind: Callable[[Lanes], SharedReplay]
) -> None:
    own = Lanes(tmp_path, schema=WITH_INTERVENTIONS)
    plain = prioritized if kind is intervened_by_priority else uniform
    mixed = MixedReplay(plain(own), {"other": Source(0.5, interventions=kind(own))}, seed=0)
    own.play(3, ends=False)
    assert mixed.batch(8)["source"].tolist() == [0] * 8
    own.write([Lanes.row(3, 9)])  # Row 3 is intervened, and its next row is not there yet.
    assert mixed.batch(8)["source"].tolist() == [0] * 8
    own.write([Lanes.row(4, 9)])
    batch = mixed.batch(8)
    assert batch["source"].tolist() == [0] * 4 + [1] * 4
    assert batch["obs/at"][4:].tolist() == [3] * 4


def test_without_interventions_the_whole_share_comes_from_the_dataset(tmp_path: Path) -> None:
    own, demos = (Lanes(tmp_path / name, schema=WITH_INTERVENTIONS) for name in ("own", "demos"))
    own.play(2)
    demos.play(30)
    mixed = MixedReplay(uniform(own), {"other": Source(0.25, uniform(demos), intervened(own))}, seed=0)
    assert np.bincount(mixed.batch(8)["source"]).tolist() == [6, 2]


def test_priorities_of_interventions_are_their_own(tmp_path: Path) -> None:
    own, _ = actors_and_demos(tmp_path)
    mixed = MixedReplay(prioritized(own), {"other": Source(0.5, interventions=intervened_by_priority(own))}, seed=0)
    batch = mixed.batch(64)
    errors = np.where((batch["source"] == 1) & (batch["obs/at"] == 13), 1e6, 1e-3).astype(np.float32)
    mixed.update_priority(batch["index"], errors)
    after = mixed.batch(64)
    of_actors, of_people = (after["obs/at"][after["source"] == i] for i in (0, 1))
    assert (of_people == 13).all()
    assert np.bincount(of_actors)[13] < 10


@pytest.mark.parametrize("kind", [intervened, intervened_by_priority])
def test_a_resumed_replay_draws_the_same_interventions(tmp_path: Path, kind: Callable[[Lanes], SharedReplay]) -> None:
    own = Lanes(tmp_path, capacity=64, schema=WITH_INTERVENTIONS)
    plain = prioritized if kind is intervened_by_priority else uniform

    def build() -> MixedReplay:
        return MixedReplay(plain(own), {"other": Source(0.4, interventions=kind(own))}, seed=0)

    before, after = build(), build()
    for _ in range(9):
        own.play(16)
        before.batch(6)
    after.restore(before.state())
    for _ in range(9):
        own.play(7)
        expected, found = before.batch(6), after.batch(6)
        for name, column in expected.items():
            np.testing.assert_array_equal(found[name], column)
