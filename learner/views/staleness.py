"""Weights of draws by the age of the policy that took their steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from common.data import VERSION, Array, Schema
from common.errors import ConfigError
from learner.replay.view import Plan, Rows

WEIGHT: Final = "weight"
NEWEST: Final = 64
"""The newest version is looked for among this many of the newest rows, as some of the actors may be behind."""
MAX_VERSION: Final = int(np.iinfo(np.uint32).max)


def any_version() -> int:
    """Bounds no version: the rows of a dataset may come from another learner."""
    return MAX_VERSION


class AgeWeights:
    """Adds a column ``weight`` to the draws of a view: ``1 / (1 + age / half_age)``, ``[B]`` float32.

    The age of a draw is the number of opt steps from the model that chose the action of its first row to the newest
    model that has acted. With ``half_age`` 1 the weights are those by which TorchRL's ``StalenessAwareSampler`` draws,
    ``1 / (age + 1)``. Here all rows are drawn as often as before, and the weights multiply their losses, which has the
    same expectation up to a factor. So the agent needs no change, and prioritised replay can use the weights too.

    Args:
        schema: of the rows.
        half_age: the age in opt steps at which a draw has half the weight; above 0.
        newest_model: gives the opt steps of the learner's newest model. A row of a greater version has age 0, and makes
            no other row older: its actor is wrong, or the learner has lost its newest opt steps.

    Raises:
        ConfigError: the rows have no version, or a column of the weight's name.
    """

    def __init__(self, schema: Schema, half_age: float, newest_model: Callable[[], int] = any_version) -> None:
        if VERSION.name not in schema.by_name or WEIGHT in schema.by_name:
            names = [column.name for column in schema.columns]
            raise ConfigError(f"replay.half_age: expected rows with a version and without '{WEIGHT}', found {names}")
        self._half_age, self._newest_model = half_age, newest_model

    def add(self, rows: Rows, index: Array, plan: Plan) -> Plan:
        """The plan of the draws that begin at the rows ``[B]``, with their weights."""
        newest = rows.take(VERSION.name, np.arange(max(rows.first, rows.end - NEWEST), rows.end)).max(initial=0)
        newest = min(int(newest), self._newest_model())
        age = np.maximum(newest - rows.take(VERSION.name, index).astype(np.int64), 0)
        weight = (1 / (1 + age / self._half_age)).astype(np.float32)
        return replace(plan, made={**plan.made, WEIGHT: weight})
