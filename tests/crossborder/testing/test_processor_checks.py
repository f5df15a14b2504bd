"""``check_step_processor`` passes good processors, and says what is wrong with one that is broken in one way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from common.data import Column, Items, Schema
from common.interfaces import EnvSpec, Step, StepProcessor
from common.parts import SameColumns
from crossborder.testing import check_row_map, check_step_processor
from examples.own_parts import Corridor
from tests.crossborder.testing.parts import Broken, Walk, broken, fails_saying


class Transitions:
    """Each step as an item."""

    def schema(self, spec: EnvSpec) -> Schema:
        obs = [Column.of(name, np.float32, (1,)) for name in ("obs", "next_obs")]
        return Schema((*obs, Column.of("action", np.int64), Column.of("reward", np.float32)))

    def reset(self) -> None: ...

    def process(self, step: Step) -> Items | None:
        pairs = {"obs": step.obs, "next_obs": step.next_obs, "action": step.action}
        items = {name: np.asarray(value)[None] for name, value in pairs.items()}
        return {
            "obs": items["obs"].astype(np.float32),
            "next_obs": items["next_obs"].astype(np.float32),
            "action": items["action"],
            "reward": np.array([step.reward], np.float32),
        }


class Sums(Transitions):
    """Each item has the sum of the episode's rewards so far."""

    def __init__(self) -> None:
        self._total = 0.0

    def reset(self) -> None:
        self._total = 0.0

    def process(self, step: Step) -> Items | None:
        self._total += step.reward
        return super().process(replace(step, reward=self._total))


def process_with(**columns: Any) -> Any:
    return lambda self, step: {**(Transitions.process(self, step) or {}), **columns}


class NeverForgets(Sums):
    def reset(self) -> None: ...


BROKEN_PROCESSORS: dict[str, Broken] = {
    "a schema of another kind": (
        {"schema": lambda self, spec: ["obs"]},
        "schema() gave list: return a crossborder.Schema",
    ),
    "no schema": ({"schema": lambda self, spec: spec.shape}, "schema() failed: it must return a crossborder.Schema"),
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
        "process() lacks columns that schema() names: action, next_obs, reward",
    ),
    "a list of items": (
        {"process": lambda self, step: [step]},
        "process() gave list: return a dict of columns, or None",
    ),
    "another dtype": (
        {"process": process_with(reward=np.zeros(1))},
        "process() gave items that do not fit schema(): column 'reward': expected <f4 [1], found <f8 [1]",
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


@pytest.mark.parametrize("processor", [Transitions(), Sums()])
def test_a_good_step_processor_passes(processor: StepProcessor) -> None:
    check_step_processor(processor, Corridor())


@pytest.mark.parametrize("what", BROKEN_PROCESSORS)
def test_a_step_processor_is_refused_that_has(what: str) -> None:
    attributes, message = BROKEN_PROCESSORS[what]
    with fails_saying(message):
        check_step_processor(broken(Transitions, attributes)(), Walk())


def test_a_processor_whose_items_cross_an_episodes_boundary_is_found() -> None:
    with fails_saying("an item crosses an episode boundary"):
        check_step_processor(NeverForgets(), Corridor())


# Maps of rows.


class Remembers(SameColumns):
    """Adds up rewards over all rows that it has seen."""

    _total = 0.0

    def map(self, rows: Items) -> Items:
        self._total += float(rows["reward"].sum())
        return {**rows, "reward": rows["reward"] + np.float32(self._total)}


BROKEN_MAPS: dict[str, Broken] = {
    "a schema of another kind": ({"schema": lambda self, rows: ["obs"]}, "schema() gave list"),
    "no schema": ({"schema": lambda self, rows: rows.shape}, "schema() failed: return the schema it is given"),
    "a schema without the last columns": (
        {"schema": lambda self, rows: Schema(rows.columns[:2])},
        "schema() must keep the columns that every row ends with",
    ),
    "fewer rows": (
        {"map": lambda self, rows: {name: column[1:] for name, column in rows.items()}},
        "return the same number, in the same order",
    ),
    "a column too many": (
        {"map": lambda self, rows: {**rows, "extra": rows["reward"]}},
        "map() gave columns that schema() does not name: extra",
    ),
    "no first rows": ({"map": lambda self, rows: {**rows, "first": ~rows["first"]}}, "map() changed 'first'"),
    "an infinite value": (
        {"map": lambda self, rows: {**rows, "reward": rows["reward"] + np.float32(np.inf)}},
        "map() gave 'reward' values that are not finite",
    ),
    "values of its neighbours": (
        {"map": lambda self, rows: {**rows, "reward": np.cumsum(rows["reward"], dtype=np.float32)}},
        "map() gave another 'reward' for the same rows",
    ),
}


def in_place(self: SameColumns, rows: Items) -> Items:
    rows["reward"] *= 2
    return rows


@pytest.mark.parametrize("what", BROKEN_MAPS)
def test_a_map_of_rows_is_refused_that_has(what: str) -> None:
    attributes, message = BROKEN_MAPS[what]
    with fails_saying(message):
        check_row_map(broken(SameColumns, attributes)(), Walk())


def test_a_map_that_writes_into_its_rows_or_remembers_them_is_found() -> None:
    with fails_saying("map() writes into the arrays it is given"):
        check_row_map(broken(SameColumns, {"map": in_place})(), Walk())
    with fails_saying("map() gave another 'reward' for the same rows: it must remember nothing"):
        check_row_map(Remembers(), Walk())


def test_a_good_map_passes_and_other_objects_do_not() -> None:
    check_row_map(SameColumns(), Walk())
    with fails_saying("expected a crossborder.RowMap, found Transitions"):
        check_row_map(Transitions(), Walk())  # type: ignore[arg-type]
