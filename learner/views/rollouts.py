"""Rollouts: the steps of a lane between two opt steps of an agent that learns from the steps of its present policy."""

from __future__ import annotations

import numpy as np

from common.data import FINAL, Array, Schema, Snapshot
from common.errors import ConfigError
from learner.replay.view import Plan, Rows, View
from learner.views.columns import StepColumns, next_name
from learner.views.paths import has_stack, stack
from learner.views.positions import PlacesInRollouts


class Rollouts(View):
    """``length`` consecutive steps of one lane, L for short, through the ends of episodes.

    A batch has ``obs…`` and ``next_obs…`` ``[B, L, …]``, the observations before and after each step; the other columns
    of the steps ``[B, L, …]``; and ``state…`` ``[B, …]``, the recurrent state before the first step. After the last
    step of an episode ``next_obs`` is its true last observation, and the step that follows begins the next episode of
    the lane.

    A lane is cut into pieces of L + 1 steps, and the last step of each piece gives only its observation, from which an
    agent estimates all later rewards. Its action was chosen before the agent could learn from the rollout. So with one
    rollout of each environment as a batch, training in turns learns from steps of its present policy alone. That step
    counts as drawn, too: a replay ratio of 1 uses each step once.

    A draw is named by the last row of its piece.

    Args:
        schema: of the rows.
        stack: frames in one observation; observations are then ``[B, L, stack, *shape]``.
        length: the number of steps L, at least 1.

    Raises:
        ConfigError: a value is out of range, or the schema is not of rows.
    """

    def __init__(self, schema: Schema, stack: int = 1, *, length: int) -> None:
        if length < 1:
            raise ConfigError(f"replay.view.params: expected length >= 1, found {length}")
        columns = StepColumns.of(schema)
        self._obs, self._stack, self._length = columns.obs, stack, length
        self._state, self._step = columns.state, columns.step
        self._places = PlacesInRollouts(length + 1)

    @property
    def steps(self) -> int:
        return self._length + 1

    @property
    def overlaps(self) -> bool:
        return False

    @property
    def reach(self) -> int:
        return 0

    @property
    def crosses_episodes(self) -> bool:
        return True

    def can_draw(self, rows: Rows, index: Array) -> Array:
        begins, place = self._places.find(rows, index)
        able: Array = (place == self._length) & (begins >= rows.first) & ~rows.take(FINAL.name, index)
        if self._stack > 1:
            able[able] = has_stack(rows, begins[able], self._stack)
        return able

    def plan(self, rows: Rows, index: Array) -> Plan:
        steps, nexts = self._find_steps(rows, index)
        before, after, lowest = steps, nexts, steps[:, 0]
        if self._stack > 1:
            before, after = (stack(rows, at, self._stack) for at in (steps, nexts))
            lowest = before[:, 0, 0]
        takes = {name: (name, before) for name in self._obs}
        takes |= {next_name(name): (name, after) for name in self._obs}
        takes |= {name: (name, steps) for name in self._step}
        takes |= {name: (name, np.ascontiguousarray(steps[:, 0])) for name in self._state}
        return Plan(takes, lowest)

    def _find_steps(self, rows: Rows, index: Array) -> tuple[Array, Array]:
        """The rows of the steps before the rows ``[B]``, ``[B, L]``, and the row after each step, ``[B, L]``."""
        steps, nexts = np.empty((2, len(index), self._length), np.int64)
        at = index
        for t in range(self._length - 1, -1, -1):
            before = rows.previous(at)
            ends = rows.take(FINAL.name, before)  # The step before the final row ended its episode.
            nexts[:, t] = np.where(ends, before, at)
            steps[:, t] = at = np.where(ends, rows.previous(before), before)
        return steps, nexts

    def state(self) -> Snapshot:
        return self._places.state()

    def restore(self, state: Snapshot, end: int) -> None:
        self._places.restore(state, end)
