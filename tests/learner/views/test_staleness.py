"""Draws weigh less the older the policy is that took their steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.config.replay_config import PrioritizedConfig
from common.data import Column
from common.errors import ConfigError
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.queue import QueueReplay
from learner.replay.uniform import UniformReplay
from learner.replay.view import View
from learner.views.sequences import Sequences
from learner.views.staleness import AgeWeights, any_version
from learner.views.transitions import Transitions
from tests.learner.views.lanes import SCHEMA, Lanes


def weighed(half_age: float = 5.0, view: View | None = None, newest_model: Callable[[], int] = any_version) -> View:
    view = view or Transitions(SCHEMA)
    view.weigh = AgeWeights(SCHEMA, half_age, newest_model).add
    return view


def weight_of(at: int, newest_row: int, half_age: float) -> float:
    """The weight by the formula: row n was taken by the model of opt step n // 2."""
    return 1 / (1 + (newest_row // 2 - at // 2) / half_age)


@pytest.mark.parametrize("half_age", [1.0, 5.0, 1e6])
def test_a_draw_weighs_by_the_opt_steps_since_the_model_that_took_its_step(tmp_path: Path, half_age: float) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(40)  # Rows 0 to 40.
    batch = lanes.draw(weighed(half_age), [0, 10, 39])
    assert batch["weight"].dtype == np.float32
    assert batch["weight"].tolist() == pytest.approx([weight_of(n, 40, half_age) for n in (0, 10, 39)])


def test_at_half_age_a_draw_weighs_half(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(40)
    assert lanes.draw(weighed(half_age=15.0), [10])["weight"].tolist() == [0.5]


def test_an_actor_that_is_behind_makes_no_other_actors_rows_younger(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(10)
    before = lanes.draw(weighed(), [2])["weight"]
    lanes.play(1, ends=False, lane=1)
    lanes.memory.columns["version"][11] = 0  # The newest row is of an old model.
    assert lanes.draw(weighed(), [2])["weight"] == before
    assert lanes.draw(weighed(), [9])["weight"] <= 1


@pytest.mark.parametrize("ahead", [30, 2**32 - 1])
def test_a_row_of_a_model_that_the_learner_does_not_have_makes_no_other_row_older(tmp_path: Path, ahead: int) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(40)
    view = weighed(newest_model=lambda: 20)  # Row 40 is of opt step 20.
    before = lanes.draw(view, [0, 10, 39])["weight"].tolist()
    lanes.play(1, ends=False, lane=1)
    lanes.memory.columns["version"][41] = ahead
    assert lanes.draw(view, [0, 10, 39])["weight"].tolist() == before
    assert lanes.memory.columns["version"][41] == ahead, "rows stay as they were sent"
    lanes.memory.columns["version"][5] = ahead
    assert lanes.draw(view, [5])["weight"].tolist() == [1.0]


def test_rows_of_opt_steps_that_a_power_cut_has_undone_count_as_rows_of_the_newest_model(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(40)
    view = weighed(newest_model=lambda: 10)
    assert lanes.draw(view, [10, 20, 39])["weight"].tolist() == pytest.approx([1 / (1 + 5 / 5), 1.0, 1.0])


@pytest.mark.parametrize("kind", [UniformReplay, QueueReplay])
def test_every_buffer_gives_the_weights(tmp_path: Path, kind: type[UniformReplay | QueueReplay]) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(30)
    batch = kind(lanes.memory, weighed(), seed=0).batch(16)
    assert batch["weight"].tolist() == pytest.approx([weight_of(int(n), 30, 5.0) for n in batch["obs/at"]])


def test_a_sequence_weighs_as_its_first_step(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(30)
    view = weighed(view=Sequences(SCHEMA, length=4, burn_in=1))
    batch = lanes.draw(view, [6, 20])
    assert batch["weight"].tolist() == pytest.approx([weight_of(6, 30, 5.0), weight_of(20, 30, 5.0)])
    assert batch["obs/at"].shape == (2, 5)


def test_prioritised_weights_are_multiplied(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(30)
    config = PrioritizedConfig(alpha=1.0, beta_0=1.0)
    plain, both = (PrioritizedReplay(lanes.memory, view, config, 0, 1) for view in (Transitions(SCHEMA), weighed()))
    for replay in (plain, both):
        index = replay.batch(16)["index"]
        replay.update_priority(index, 1.0 + index)
    one, other = plain.batch(16), both.batch(16)
    assert one["index"].tolist() == other["index"].tolist()
    ages = np.array([weight_of(int(n), 30, 5.0) for n in one["index"]])
    np.testing.assert_allclose(other["weight"], one["weight"] * ages, rtol=1e-6)
    assert len(set(one["weight"].tolist())) > 1


def test_rows_with_a_weight_of_their_own_are_refused() -> None:
    schema = SCHEMA.plus(Column.of("weight", np.float32))
    with pytest.raises(ConfigError, match=r"replay\.half_age: expected rows with a version and without 'weight'"):
        AgeWeights(schema, 5.0)
