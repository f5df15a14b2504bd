from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.config.actor_config import ActorConfig
from common.data import ROW_COLUMNS, Column, Items, Schema
from common.errors import ConfigError, PluginError
from common.interfaces import EnvSpec, RowMap, Step
from common.lanes.plain_lanes import PlainLanes
from common.parts import SameColumns, build_parts, build_processors, check_mapped
from common.plugins.part_config import PluginConfig
from common.settings import validate
from crossborder.testing import check_row_map
from examples.own_parts import Corridor
from examples.own_processor import ScaledReward
from tests.parts import CheckingAgent, CountingEnv, RatingAgent, counting_schema, expected_rows

BASE = {
    "env": {"target": "tests.parts:CountingEnv"},
    "agent": {"target": "tests.parts:CheckingAgent"},
    "envs_per_actor": 3,
}


def config(**changes: Any) -> ActorConfig:
    return validate(ActorConfig, {**BASE, **changes})


def names(schema: Schema) -> list[str]:
    return [column.name for column in schema.columns]


def test_an_actor_gets_lanes_and_one_agent_for_all_of_them() -> None:
    parts = build_parts(config(), seed=5, epsilon=0.5, n_envs=3)
    assert isinstance(parts.lanes, PlainLanes)
    assert [type(env) for env in parts.lanes.envs] == [CountingEnv] * 3
    assert isinstance(parts.agent, CheckingAgent)
    assert (parts.agent.seed, parts.agent.epsilon) == (5, 0.5)
    assert parts.schema == parts.rows == counting_schema()
    assert (parts.row_map, parts.processors, parts.has_priorities) == (None, (), False)


def test_a_learner_gets_no_lanes() -> None:
    parts = build_parts(config(), seed=0)
    assert parts.lanes is None
    assert parts.schema == counting_schema()
    parts.close()


def test_with_described_spaces_a_learner_needs_no_environment() -> None:
    spaces = "tests.parts:CountingEnv"
    parts = build_parts(config(env={"target": "no_such_robot:Arm", "spaces": spaces}), seed=0)
    assert parts.schema == counting_schema()
    with pytest.raises(PluginError, match="no_such_robot"):
        build_parts(config(env={"target": "no_such_robot:Arm", "spaces": spaces}), seed=0, n_envs=1)


def test_the_agent_sees_stacks_and_rows_hold_frames() -> None:
    parts = build_parts(config(env={**BASE["env"], "frame_stack": 4}), seed=0)  # type: ignore[dict-item]
    assert parts.spec.observation_space.shape == (4, 3)
    assert parts.frames.observation_space.shape == (3,)
    assert parts.schema == counting_schema()


class Extras(CheckingAgent):
    def extra_columns(self) -> tuple[Column, ...]:
        return (Column.of("logp", np.float32),)


class Clashes(CheckingAgent):
    def extra_columns(self) -> tuple[Column, ...]:
        return (Column.of("reward", np.float32),)


def test_further_columns_stand_before_those_of_every_row() -> None:
    env = {**BASE["env"], "info": {"goal": "float32[2]"}, "intervention": "human"}  # type: ignore[dict-item]
    agent = {"target": f"{__name__}:Extras"}
    parts = build_parts(config(env=env, agent=agent, step_processor={"target": f"{__name__}:Marked"}), seed=0)
    more = ["logp", "info/goal", "intervened", "marked"]
    assert names(parts.schema)[5:] == [*more, *(column.name for column in ROW_COLUMNS)]
    assert names(parts.rows)[5:8] == more[:3]


def test_an_extra_column_with_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ConfigError, match="distinct names"):
        build_parts(config(agent={"target": f"{__name__}:Clashes"}), seed=0)


class Named(CheckingAgent):
    def __init__(self, *args: Any, columns: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.columns = columns

    def extra_columns(self) -> Any:
        return self.columns


@pytest.mark.parametrize("columns", [None, {"logp": "<f4"}, ["logp"]])
def test_extra_columns_of_another_kind_are_refused(columns: Any) -> None:
    with pytest.raises(PluginError, match=r"^agent\.extra_columns: expected a list of crossborder\.Column, found "):
        build_parts(config(agent={"target": f"{__name__}:Named", "params": {"columns": columns}}), seed=0)


class Marked(RowMap):
    def schema(self, rows: Schema) -> Schema:
        return rows.plus(Column.of("marked", np.bool_))

    def map(self, rows: Items) -> Items:
        return {**rows, "marked": np.ones(len(rows["first"]), bool)}


class NoRows(Marked):
    def schema(self, rows: Schema) -> Schema:
        return Schema(rows.columns[:3])


class Processor:
    def schema(self, spec: EnvSpec) -> Schema:
        return Schema((Column.of("n", np.int64),))

    def reset(self) -> None: ...

    def process(self, step: Step) -> None: ...


def test_every_lane_has_a_step_processor_of_its_own() -> None:
    parts = build_parts(config(step_processor={"target": f"{__name__}:Processor"}), seed=0, n_envs=3)
    assert len({id(processor) for processor in parts.processors}) == 3
    assert names(parts.schema) == ["n"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step_processor": {"target": f"{__name__}:NoRows"}}, "NoRows.schema must return the columns of rows"),
        ({"step_processor": {"target": "builtins:dict"}}, "found dict without schema, reset, process"),
        ({"agent": {"target": "builtins:dict"}}, "expected a crossborder.Agent, found dict"),
        ({"push": {"initial_priorities": True}}, r"CheckingAgent has no td_error\(items\)"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        build_parts(config(**changes), seed=0)


@pytest.mark.parametrize("processor", [None, f"{__name__}:Marked", f"{__name__}:Processor"])
def test_with_first_priorities_there_is_a_column_for_them(processor: str | None) -> None:
    changes: dict[str, Any] = {"push": {"initial_priorities": True}, "agent": {"target": "tests.parts:RatingAgent"}}
    if processor:
        changes["step_processor"] = {"target": processor}
    parts = build_parts(config(**changes), seed=0)
    assert isinstance(parts.agent, RatingAgent)
    assert parts.has_priorities
    own = names(parts.schema)[: -len(ROW_COLUMNS)] if parts.schema.is_rows else names(parts.schema)
    assert own[-1] == "priority"


class Closing(CountingEnv):
    """Counts how many were closed."""

    closed = 0

    def close(self) -> None:
        Closing.closed += 1


def test_lanes_are_closed_when_a_later_part_does_not_fit() -> None:
    with pytest.raises(PluginError, match=r"agent\.target: expected"):
        build_parts(config(env={"target": f"{__name__}:Closing"}, agent={"target": "builtins:dict"}), seed=0, n_envs=3)
    assert Closing.closed == 3


class Never:
    def schema(self, spec: EnvSpec) -> Schema:
        raise AssertionError("not asked")

    def reset(self) -> None: ...

    def process(self, step: Step) -> None: ...


def test_without_a_part_rows_stay_as_they_are() -> None:
    assert build_processors(None, 3) == (None, ())


def test_there_is_one_map_for_all_lanes_and_a_step_processor_for_each() -> None:
    row_map, processors = build_processors(PluginConfig(target="examples.own_processor:ScaledReward"), 3)
    assert isinstance(row_map, ScaledReward)
    assert processors == ()
    row_map, processors = build_processors(PluginConfig(target=f"{__name__}:Never"), 3)
    assert row_map is None
    assert len({id(processor) for processor in processors}) == 3


def test_a_part_that_is_neither_is_refused() -> None:
    with pytest.raises(PluginError, match="RowMap or StepProcessor, found dict without schema"):
        build_processors(PluginConfig(target="builtins:dict"), 1)


def test_a_map_that_keeps_the_columns_may_change_nothing() -> None:
    rows = expected_rows(7, 5)
    assert SameColumns().map(rows) is rows
    assert check_mapped(SameColumns(), counting_schema()) == counting_schema()


@pytest.mark.parametrize("found", [None, Schema(counting_schema().columns[:2])])
def test_a_map_whose_rows_lack_their_last_columns_is_refused(found: Any) -> None:
    class Wrong(SameColumns):
        def schema(self, rows: Schema) -> Schema:
            return found  # type: ignore[no-any-return]

    with pytest.raises(PluginError, match=r"Wrong\.schema must return the columns of rows"):
        check_mapped(Wrong(), counting_schema())


def test_the_example_scales_rewards_and_cuts_them() -> None:
    check_row_map(ScaledReward(100, 50), Corridor())
    rows = expected_rows(7, 7)
    mapped = ScaledReward(2.0, limit=9.0).map(rows)
    np.testing.assert_array_equal(mapped["reward"], [2, 4, 6, 8, 9, 9, 0, 9])
    assert mapped["reward"].dtype == np.float32
