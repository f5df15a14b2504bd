"""Draws begin at the rows of actors in which somebody intervened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.config.replay_config import PrioritizedConfig
from learner.replay.interventions import (
    RECENT,
    IntervenedRows,
    PrioritizedInterventions,
    UniformInterventions,
    record_interventions,
)
from learner.replay.reader import NothingToDrawError
from learner.replay.shared_buffer import SharedReplay
from learner.replay.view import View
from learner.views.sequences import Sequences
from learner.views.transitions import Transitions
from tests.learner.views.lanes import SCHEMA, WITH_INTERVENTIONS, Lanes


def uniform(lanes: Lanes, view: View) -> SharedReplay:
    return UniformInterventions(lanes.memory, view, seed=0)


def by_priority(lanes: Lanes, view: View) -> SharedReplay:
    return PrioritizedInterventions(lanes.memory, view, PrioritizedConfig(), 0, 1000)


KINDS = pytest.mark.parametrize("kind", [uniform, by_priority])
Build = Callable[[Lanes, View], SharedReplay]


def test_rows_are_found_once_and_leave_when_they_are_overwritten(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, capacity=40, schema=WITH_INTERVENTIONS)
    found = IntervenedRows(lanes.memory)
    assert len(found) == 0
    for _ in range(30):
        lanes.play(6)
        memory = lanes.memory
        expected = [i for i in range(memory.first(), memory.committed) if i % 10 == 3]
        assert found.find(memory.first(), memory.committed).tolist() == expected
        assert len(IntervenedRows(memory)) == len(found) == len(expected), "a resumed run finds the same"


@KINDS
def test_a_draw_begins_at_an_intervened_row(tmp_path: Path, kind: Build) -> None:
    lanes = Lanes(tmp_path, capacity=100, schema=WITH_INTERVENTIONS)
    replay = kind(lanes, Transitions(WITH_INTERVENTIONS, n=3, discount_factor=0.9))
    for _ in range(10):
        lanes.play(12, 9)
        batch = replay.batch(32)
        assert set(batch["obs/at"] % 10) == {3}
        assert batch["obs/at"].min() >= lanes.memory.first()
    assert len(replay) == 10
    assert replay.last_drawn.tolist() == batch["obs/at"].tolist()


@KINDS
def test_a_sequence_that_begins_at_an_intervention_goes_on_with_any_rows(tmp_path: Path, kind: Build) -> None:
    lanes = Lanes(tmp_path, schema=WITH_INTERVENTIONS)
    lanes.play(60)
    batch = kind(lanes, Sequences(WITH_INTERVENTIONS, length=4)).batch(16)
    assert set(batch["obs/at"][:, 0] % 10) == {3}
    np.testing.assert_array_equal(batch["intervened"], np.tile([True, False, False, False], (16, 1)))


@KINDS
def test_without_interventions_there_is_nothing_to_draw_from(tmp_path: Path, kind: Build) -> None:
    lanes = Lanes(tmp_path, schema=WITH_INTERVENTIONS)
    lanes.play(2)
    replay = kind(lanes, Transitions(WITH_INTERVENTIONS))
    assert len(replay) == 0
    with pytest.raises(NothingToDrawError):
        replay.batch(4)


@KINDS
def test_excluded_rows_are_not_drawn(tmp_path: Path, kind: Build) -> None:
    lanes = Lanes(tmp_path, schema=WITH_INTERVENTIONS)
    lanes.play(60)
    lanes.memory.exclude(np.array([13, 24]))  # The row after row 23 too, which holds its next observation.
    batch = kind(lanes, Transitions(WITH_INTERVENTIONS)).batch(64)
    assert set(batch["obs/at"]) == {3, 33, 43, 53}


def test_the_share_of_interventions_is_that_of_the_newest_steps(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path / "with", capacity=4 * RECENT, schema=WITH_INTERVENTIONS)
    assert record_interventions(lanes.memory) == {}, "no step yet"
    lanes.play(8, 11)  # 21 rows, two of them final; rows 3 and 13 are intervened.
    assert record_interventions(lanes.memory) == {"train_intervened": 2 / 19}
    lanes.play(2 * RECENT, ends=False)
    assert record_interventions(lanes.memory) == {"train_intervened": 0.1}
    lanes = Lanes(tmp_path / "without", schema=SCHEMA)
    lanes.play(8)
    assert record_interventions(lanes.memory) == {}, "rows do not say so"
