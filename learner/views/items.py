"""Self-contained items of a user's own step processor."""

# ruff: noqa: ARG002 - every item can be drawn, wherever it is
from __future__ import annotations

import numpy as np

from common.data import PRIORITY, Array, Schema
from learner.replay.view import Plan, Rows, View


class SelfContained(View):
    """Items as they are: all columns ``[B, …]`` except ``priority``, the priority with which an item begins."""

    def __init__(self, schema: Schema) -> None:
        self._names = [column.name for column in schema.columns if column.name != PRIORITY.name]

    @property
    def reach(self) -> int:
        return 0

    def can_draw(self, rows: Rows, index: Array) -> Array:
        return np.ones(len(index), np.bool_)

    def plan(self, rows: Rows, index: Array) -> Plan:
        return Plan({name: (name, index) for name in self._names}, lowest=index)
