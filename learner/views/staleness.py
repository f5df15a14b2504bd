"""Weights of draws by the age of the policy that took their steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from common.data import VERSION, Array, Items, Schema, Snapshot
from common.errors import ConfigError
from learner.replay.view import Plan, Rows, View

WEIGHT: Final = "weight"
NEWEST: Final = 64
"""The newest version is looked for among this many of the newest rows, as some of the actors may be behind."""
MAX_VERSION: Final = int(np.iinfo(np.uint32).max)


def any_version() -> int:
    """Bounds no version: the rows of a dataset may come from another learner."""
    return MAX_VERSION


class WeighedByAge(View):
    """The draws of another view with a column ``weight``: ``1 / (1 + age / half_age)``, ``[B]`` float32.

    The age of a draw is the number of opt steps from the model that chose the action of its first row to the newest
    model that has acted. With ``half_age`` 1 the weights are those by which TorchRL's ``StalenessAwareSampler`` draws,
    ``1 / (age + 1)``. Here all rows are drawn as often as before, and the weights multiply their losses, which has the
    same expectation up to a factor. So the agent needs no change, and prioritised replay can use the weights too.

    Args:
        view: assembles the batches.
        schema: of the rows.
        half_age: the age in opt steps at which a draw has half the weight; above 0.
        newest_model: gives the opt steps of the learner's newest model. A row of a greater version has age 0, and makes
            no other row older: its actor is wrong, or the learner has lost its newest opt steps.

    Raises:
        ConfigError: the rows have no version, or a column of the weight's name.
    """

    def __init__(
        self, view: View, schema: Schema, half_age: float, newest_model: Callable[[], int] = any_version
    ) -> None:
        if VERSION.name not in schema.by_name or WEIGHT in schema.by_name:
            names = [column.name for column in schema.columns]
            raise ConfigError(f"replay.staleness: expected rows with a version and without '{WEIGHT}', found {names}")
        self._view, self._half_age, self._newest_model = view, half_age, newest_model

    @property
    def steps(self) -> int:
        return self._view.steps

    @property
    def overlaps(self) -> bool:
        return self._view.overlaps

    def count_steps(self, made: Items, draws: int) -> int:
        return self._view.count_steps(made, draws)

    @property
    def reach(self) -> int:
        return self._view.reach

    @property
    def crosses_episodes(self) -> bool:
        return self._view.crosses_episodes

    def can_draw(self, rows: Rows, index: Array) -> Array:
        return self._view.can_draw(rows, index)

    def plan(self, rows: Rows, index: Array) -> Plan:
        return self._weigh(rows, index, self._view.plan(rows, index))

    def choose(self, rows: Rows, tries: Array, size: int) -> tuple[Array, Plan]:
        index, plan = self._view.choose(rows, tries, size)
        return index, self._weigh(rows, index, plan)

    def state(self) -> Snapshot:
        return self._view.state()

    def restore(self, state: Snapshot, end: int) -> None:
        self._view.restore(state, end)

    def _weigh(self, rows: Rows, index: Array, plan: Plan) -> Plan:
        newest = rows.take(VERSION.name, np.arange(max(rows.first, rows.end - NEWEST), rows.end)).max(initial=0)
        newest = min(int(newest), self._newest_model())
        age = np.maximum(newest - rows.take(VERSION.name, index).astype(np.int64), 0)
        weight = (1 / (1 + age / self._half_age)).astype(np.float32)
        return replace(plan, made={**plan.made, WEIGHT: weight})
