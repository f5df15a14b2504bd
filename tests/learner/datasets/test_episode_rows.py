from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from common.data import INTERVENED, PRIORITY, Array, Column, Items, Schema
from common.episode_files import headers_of
from common.errors import DatasetError, SchemaMismatchError
from common.interfaces import EnvSpec, Step
from common.lanes.building import spec_of, stacked_spec
from common.parts import Parts, row_schema
from common.spaces import columns_of
from learner.datasets.episode_rows import as_sent, check_arrays, make_rows
from tests.frame_parts import check_filmed, filmed_counting_env
from tests.parts import CountingEnv, check_transitions, counting_schema, expected_rows

OBSERVATIONS = Dict({"front": Box(0, 255, (3, 4, 5), np.uint8), "joints": Box(-np.inf, np.inf, (2,), np.float32)})
ROWS = row_schema(EnvSpec(OBSERVATIONS, Box(-1, 1, (2,), np.float32)))
CHOICES = row_schema(EnvSpec(Box(-1, 1, (1,), np.float32), Discrete(300)))
STEPS = 4


def make_episode(**other: Any) -> Items:
    """An episode of 4 steps that terminates, with ``other`` arrays; None leaves one out."""
    made: dict[str, Any] = {
        "obs/front": np.zeros((STEPS + 1, 3, 4, 5), np.uint8),
        "obs/joints": np.arange(2 * (STEPS + 1), dtype=np.float64).reshape(-1, 2),
        "action": np.linspace(-1, 1, 2 * STEPS).reshape(STEPS, 2),
        "reward": np.arange(1, STEPS + 1),
        "terminated": np.arange(STEPS) == STEPS - 1,
    }
    return {name: array for name, array in (made | other).items() if array is not None}


def rows_of(episode: Items, schema: Schema = ROWS) -> Items:
    check_arrays(schema, headers_of(episode), "demos/one.npz")
    rows = make_rows(schema, episode, "demos/one.npz")
    schema.count(rows)
    return rows


def test_an_episode_has_a_row_for_each_step_and_a_final_row() -> None:
    rows = rows_of(make_episode())
    np.testing.assert_array_equal(rows["obs/joints"][:, 0], [0, 2, 4, 6, 8])
    assert rows["reward"].tolist() == [1, 2, 3, 4, 0]
    assert rows["terminated"].tolist() == [False, False, False, True, False]
    assert not rows["truncated"].any()
    assert rows["first"].tolist() == [True, False, False, False, False]
    assert rows["final"].tolist() == [False, False, False, False, True]


def test_without_the_last_observation_a_terminated_episode_repeats_the_one_before() -> None:
    rows = rows_of(make_episode(**{name: array[:-1] for name, array in make_episode().items() if "obs" in name}))
    assert rows["obs/joints"][:, 0].tolist() == [0, 2, 4, 6, 6]
    assert rows["reward"].tolist() == [1, 2, 3, 4, 0]


def test_without_the_last_observation_a_cut_off_episode_is_a_step_shorter() -> None:
    cut = make_episode(terminated=None)
    rows = rows_of(cut | {name: array[:-1] for name, array in cut.items() if "obs" in name})
    assert rows["obs/joints"][:, 0].tolist() == [0, 2, 4, 6]
    assert rows["reward"].tolist() == [1, 2, 3, 0]
    assert rows["truncated"].tolist() == [False, False, True, False]
    assert rows["final"].tolist() == [False, False, False, True]


def test_nobody_intervened_where_an_episode_does_not_say_so() -> None:
    schema = ROWS.plus(INTERVENED).plus(Column("state", "<f4", (2,)))
    assert not rows_of(make_episode(), schema)["intervened"].any()
    told = rows_of(make_episode(intervened=np.arange(STEPS) == 1), schema)
    assert told["intervened"].tolist() == [False, True, False, False, False]
    last = rows_of(make_episode(intervened=np.arange(STEPS) == STEPS - 1), schema)
    assert last["intervened"].tolist() == [False, False, False, True, False], "the final row is no step"


def test_a_number_may_be_an_array_of_one_element_and_whole_numbers_may_be_wider() -> None:
    episode = {
        "obs": np.zeros(STEPS + 1),
        "action": np.array([[1], [2], [3], [299]]),
        "reward": np.zeros((STEPS, 1)),
        "terminated": np.zeros(STEPS, bool),
    }
    assert rows_of(episode, CHOICES)["action"].tolist() == [1, 2, 3, 299, 299]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"obs/front": None, "obs/frnt": np.zeros(5)}, r"expected an array 'obs/front' \(did you mean 'obs/frnt'\?\)"),
        ({"obs/front": np.zeros((5, 4, 5, 3), np.uint8)}, r"expects uint8 \[3, 4, 5\] .*uint8 \[4, 5, 3\].*moveaxis"),
        ({"obs/front": np.zeros((5, 3, 8, 8), np.uint8)}, r"found uint8 \[3, 8, 8\]; pictures are not resized here"),
        ({"obs/front": np.zeros((5, 3, 4, 5))}, r"expects uint8 .* found float64 \[3, 4, 5\]; pictures of floats"),
        ({"obs/joints": np.zeros((5, 3))}, r"array 'obs/joints': the run expects float32 \[2\] .*float64 \[3\]$"),
    ],
)
def test_arrays_that_do_not_fit_are_named_with_a_hint(other: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=rf"demos/one.npz: .*{message}"):
        rows_of(make_episode(**other))


def test_pictures_of_bytes_do_not_become_floats() -> None:
    floats = Dict({"front": Box(0, 1, (3, 4, 5), np.float32), "joints": OBSERVATIONS["joints"]})
    with pytest.raises(SchemaMismatchError, match=r"expects float32 .* found uint8 .*whether 255 stands for 1"):
        rows_of(make_episode(), row_schema(EnvSpec(floats, Box(-1, 1, (2,), np.float32))))


@pytest.mark.parametrize("name", ["log_prob", "info/force"])
def test_a_column_that_only_an_actor_knows_is_not_made_up(name: str) -> None:
    with pytest.raises(SchemaMismatchError, match=name):
        rows_of(make_episode(), ROWS.plus(Column(name, "<f4")))


def test_a_whole_number_that_its_column_cannot_hold_is_named_with_its_step() -> None:
    joints: Array = np.full((STEPS + 1, 3, 4, 5), 7, np.int64)
    joints[2, 0, 0, 0] = 256
    with pytest.raises(DatasetError, match=r"'obs/front': expected .* that uint8 can hold, found 256 in step 2"):
        rows_of(make_episode(**{"obs/front": joints}))


class Transitions:
    """Self-contained transitions."""

    def schema(self, spec: EnvSpec) -> Schema:
        return Schema(
            (
                *columns_of("obs", spec.observation_space),
                *columns_of("next_obs", spec.observation_space),
                *columns_of("action", spec.action_space),
                *counting_schema().columns[2:5],
            )
        )

    def reset(self) -> None:
        """It remembers nothing."""

    def process(self, step: Step) -> Items:
        return {
            "obs": np.array([step.obs]),
            "next_obs": np.array([step.next_obs]),
            "action": np.array([step.action]),
            "reward": np.array([step.reward], np.float32),
            "terminated": np.array([step.terminated]),
            "truncated": np.array([step.truncated]),
        }


def parts(**given: Any) -> Parts:
    defaults = {"schema": counting_schema(), "row_map": None, "processors": (), "has_priorities": False}
    return cast(Parts, SimpleNamespace(**{**defaults, "frame_stack": 1, **given}))


EPISODE = expected_rows(3, 6)
"""The six steps of the first episode and its final row."""


def test_rows_stay_as_they_are() -> None:
    found = as_sent(EPISODE, parts())
    for name, column in EPISODE.items():
        np.testing.assert_array_equal(found[name], column)


def test_first_priorities_are_one() -> None:
    found = as_sent(EPISODE, parts(schema=counting_schema(PRIORITY), has_priorities=True))
    assert found["priority"].tolist() == [1.0] * 7


def test_a_step_processor_makes_items_of_the_steps() -> None:
    processor = Transitions()
    found = as_sent(EPISODE, parts(schema=processor.schema(spec_of(CountingEnv())), processors=(processor,)))
    assert len(found["obs"]) == 6
    check_transitions(found)


def test_a_step_processor_sees_stacks_as_the_agent_does() -> None:
    env, processor = filmed_counting_env(), Transitions()
    pictures = np.stack([env.observation(obs) for obs in EPISODE["obs"]])  # type: ignore[attr-defined]
    frames = spec_of(env)
    spec = stacked_spec(frames, 4)
    given = parts(schema=processor.schema(spec), processors=(processor,), frames=frames, frame_stack=4)
    check_transitions(check_filmed(as_sent({**EPISODE, "obs": pictures}, given)))
