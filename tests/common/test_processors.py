from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.data import Schema
from common.errors import PluginError
from common.interfaces import EnvSpec, Step
from common.plugins.part_config import PluginConfig
from common.processors import SameColumns, build_processors, check_mapped
from crossborder.testing import check_row_map
from examples.own_parts import Corridor
from examples.own_processor import ScaledReward
from tests.parts import counting_schema, expected_rows


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
