"""Builds the part that changes rows before they leave the actor: a map of rows, or a step processor for each lane."""

from __future__ import annotations

from typing import Any

from common.data import Items, Schema
from common.errors import PluginError
from common.interfaces import RowMap, StepProcessor
from common.plugins.part_config import PluginConfig
from common.plugins.shipped import METHODS


class SameColumns(RowMap):
    """Leaves rows unchanged. A map that changes values and adds no columns derives from it and overrides ``map``."""

    def schema(self, rows: Schema) -> Schema:
        return rows

    def map(self, rows: Items) -> Items:
        return rows


def build_processors(config: PluginConfig | None, n: int) -> tuple[RowMap | None, tuple[StepProcessor, ...]]:
    """Build the part that ``step_processor`` names.

    Args:
        config: names the part; None leaves rows unchanged.
        n: the number of lanes; each has a separate step processor.

    Returns:
        The map of rows, or None; and the step processors, which are empty if the part is no step processor.

    Raises:
        PluginError: the part is not a map of rows or a step processor.
    """
    made = config.build() if config else None
    if config is None or isinstance(made, RowMap):
        return made, ()
    if missing := [name for name in METHODS["step processor"] if not callable(getattr(made, name, None))]:
        raise PluginError(
            f"step_processor.target: expected a crossborder.RowMap or StepProcessor, found "
            f"{type(made).__name__} without {', '.join(missing)}"
        )
    return None, (made, *(config.build() for _ in range(n - 1)))


def check_mapped(row_map: RowMap, rows: Schema) -> Schema:
    """Return the columns of the rows that ``row_map`` makes.

    Raises:
        PluginError: ``row_map.schema`` returned something else than the columns of rows.
    """
    found: Any = row_map.schema(rows)
    if not (isinstance(found, Schema) and found.is_rows):
        raise PluginError(
            f"step_processor.target: {type(row_map).__name__}.schema must return the columns of rows; build on "
            f"rows.plus(column), found {found}"
        )
    return found
