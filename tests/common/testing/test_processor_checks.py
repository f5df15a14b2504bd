"""``check_step_processor`` passes good processors, and says what is wrong with one that is broken in one way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.data import Column, Items, Schema
from common.interfaces import Step
from common.processors import NStep, OneStep
from common.testing import check_step_processor
from examples.own_parts import Corridor
from tests.common.testing.parts import Broken, Walk, broken, fails_saying


def process_with(**columns: Any) -> Any:
    return lambda self, step: OneStep().process(step) | columns


class NeverForgets(NStep):
    def reset(self) -> None: ...


class Carries(OneStep):
    """Adds up rewards, and goes on adding in the next episode."""

    total = 0.0

    def process(self, step: Step) -> Items:
        self.total += step.reward
        return super().process(step) | {"reward": np.array([self.total], np.float32)}


BROKEN_PROCESSORS: dict[str, Broken] = {
    "a schema of another kind": ({"schema": lambda self, spec: ["obs"]}, "schema() gave list: return a common.data"),
    "no schema": ({"schema": lambda self, spec: spec.shape}, "schema() failed: it must return a common.data.Schema"),
    "a schema that changes": (
        {"schema": lambda self, spec: Schema((Column.of(str(np.random.default_rng().random()), np.float32),))},
        "schema() twice gave different columns",
    ),
    "a column too many": (
        {"process": process_with(extra=np.zeros(1))},
        "process() gave columns that schema() does not name: extra",
    ),
    "a column missing": (
        {"process": lambda self, step: {"obs": step.obs[None]}},
        "process() lacks columns that schema() names: action, next_obs, reward, terminated, truncated",
    ),
    "a list of items": (
        {"process": lambda self, step: [step]},
        "process() gave list: return a dict of columns, or None",
    ),
    "another dtype": (
        {"process": process_with(reward=np.zeros(1))},
        "process() gave items that do not fit schema(): column 'reward': expected <f4 [1, *[]], found <f8 [1]",
    ),
    "columns of different lengths": (
        {"process": process_with(reward=np.zeros(2, np.float32))},
        "every column is [n, *shape] with the same n",
    ),
    "an infinite value": (
        {"process": process_with(reward=np.full(1, np.inf, np.float32))},
        "process() gave 'reward' values that are not finite",
    ),
    "nothing at all": ({"process": lambda self, step: None}, "process() gave no item in 300 steps"),
}


@pytest.mark.parametrize("processor", [OneStep(), NStep(1), NStep(5), NStep(50)])
def test_a_good_step_processor_passes(processor: OneStep | NStep) -> None:
    check_step_processor(processor, Walk())


@pytest.mark.parametrize("what", BROKEN_PROCESSORS)
def test_a_step_processor_is_refused_that_has(what: str) -> None:
    attributes, message = BROKEN_PROCESSORS[what]
    with fails_saying(message):
        check_step_processor(broken(OneStep, attributes)(), Walk())


@pytest.mark.parametrize("processor", [NeverForgets(3), Carries()])
def test_a_processor_whose_items_cross_an_episodes_boundary_is_found(processor: OneStep | NStep) -> None:
    with fails_saying("an item crosses an episode boundary"):
        check_step_processor(processor, Corridor())
