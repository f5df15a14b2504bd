"""Shares of every batch come from several replays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.config.replay_config import PrioritizedConfig
from common.errors import CheckpointError, PluginError
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.reader import NothingToDrawError
from learner.replay.shared_buffer import SharedReplay
from learner.replay.sources import SHIFT, MixedReplay
from learner.replay.uniform import UniformReplay
from learner.views.transitions import Transitions
from tests.learner.views.lanes import SCHEMA, Lanes


def uniform(lanes: Lanes) -> SharedReplay:
    return UniformReplay(lanes.memory, Transitions(SCHEMA), seed=0)


def prioritized(lanes: Lanes) -> SharedReplay:
    return PrioritizedReplay(lanes.memory, Transitions(SCHEMA), PrioritizedConfig(alpha=1.0), 0, 1000)


def three(directory: Path) -> list[Lanes]:
    """Replays whose rows can be told apart by their numbers: up to 10, 20 and 50."""
    all_lanes = [Lanes(directory / name) for name in ("own", "first", "second")]
    for lanes, length in zip(all_lanes, (10, 20, 50), strict=True):
        lanes.play(length)
    return all_lanes


def test_each_source_gives_its_share_and_draws_know_their_source(tmp_path: Path) -> None:
    own, first, second = map(uniform, three(tmp_path))
    mixed = MixedReplay(own, [(first, 0.25), (second, 0.125)], seed=0)
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
    mixed = MixedReplay(own, [(first, 0.3), (second, 0.05)], seed=0)
    counts = sum(np.bincount(mixed.batch(4)["source"], minlength=3) for _ in range(2000))
    np.testing.assert_allclose(counts / 8000, [0.65, 0.3, 0.05], atol=0.01)


def test_priorities_reach_the_replay_that_the_draw_came_from(tmp_path: Path) -> None:
    own, first, second = map(prioritized, three(tmp_path))
    mixed = MixedReplay(own, [(first, 0.5)], seed=0)
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
        return MixedReplay(kind(lanes[0]), [(kind(lanes[1]), 0.3), (kind(lanes[2]), 0.2)], seed=0)

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
        MixedReplay(uniform(Lanes(tmp_path / "empty")), [(uniform(lanes[1]), 0.5)], seed=0).batch(4)


def test_the_state_of_other_sources_is_refused(tmp_path: Path) -> None:
    own, first, second = map(uniform, three(tmp_path))
    state = MixedReplay(own, [(first, 0.25)], seed=0).state()
    with pytest.raises(CheckpointError, match=r"replay\.sources: expected the state of 2 sources, found that of 1"):
        MixedReplay(own, [(first, 0.25), (second, 0.125)], seed=0).restore(state)


def test_sources_that_draw_other_columns_are_refused(tmp_path: Path) -> None:
    own, first, _ = three(tmp_path)
    with pytest.raises(PluginError, match=r"replay\.sources: expected the columns .*'index', .*, found \['action'"):
        MixedReplay(prioritized(own), [(uniform(first), 0.5)], seed=0).batch(4)
