from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from common.data import PRIORITY, Items, Schema
from common.interfaces import EnvSpec, Step
from common.lanes.building import spec_of, stacked_spec
from common.parts import Parts
from common.spaces import columns_of
from learner.datasets.as_sent import as_sent
from tests.frame_parts import check_filmed, filmed_counting_env
from tests.parts import CountingEnv, check_transitions, counting_schema, expected_rows


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
