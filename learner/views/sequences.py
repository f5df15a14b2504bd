"""Sequences of consecutive steps, for recurrent agents."""

from __future__ import annotations

import numpy as np

from common.data import FINAL, FIRST, Array, Items, Schema
from common.errors import ConfigError
from learner.replay.view import Plan, Rows
from learner.views.columns import StepColumns
from learner.views.paths import PathView, follow, has_stack, stack
from learner.views.positions import Positions


class Sequences(PathView):
    """``length`` consecutive steps of one lane, L for short.

    A batch has ``obs…`` ``[B, L + 1, …]``, of which the last is the observation after the last step; the other columns
    of the steps ``[B, L, …]``; ``mask`` ``[B, L]`` bool: a step is here; ``warm`` ``[B, L]`` bool: an agent learns
    from the step; ``first`` ``[B, L + 1]`` bool: the row begins an episode; and ``state…`` ``[B, …]``, the recurrent
    state before the first step.

    A sequence begins at any step, or with ``period`` at every ``period``-th step of an episode. If the episode ends
    before L steps, its last observation is repeated, and ``mask`` is False from there on. With ``across`` the sequence
    goes on in the next episode of the lane instead: a final row takes one place among the L, where ``mask`` is False
    and ``obs`` the true last observation, and ``first`` is True at the row that follows.

    The first ``burn_in`` steps are among the L. Over them an agent warms up the state, which an older network computed
    (R2D2, Kapturowski et al. 2019): ``mask`` is True for them and ``warm`` False. From the beginning of an episode on,
    all steps are warm, since the state there is known. Each sequence has a warm step.

    Args:
        schema: of the rows.
        stack: frames in one observation; observations are then ``[B, L + 1, stack, *shape]``.
        length: the number of steps L, at least 1.
        burn_in: the number of first steps that only warm up the recurrent state, less than ``length``.
        period: the number of steps between the beginnings of two sequences, counted from the first row of the episode;
            1: sequences begin at any step. Above 1, an episode is not drawn if its first row has been overwritten.
        across: whether a sequence goes on in the next episode when its own ends.

    Raises:
        ConfigError: a value is out of range, or the schema is not of rows.
    """

    def __init__(
        self,
        schema: Schema,
        stack: int = 1,
        *,
        length: int,
        burn_in: int = 0,
        period: int = 1,
        across: bool = False,
    ) -> None:
        if length < 1 or not 0 <= burn_in < length or period < 1:
            raise ConfigError(
                f"replay.view.params: expected length >= 1, 0 <= burn_in < length and period >= 1, found {length}, "
                f"{burn_in} and {period}"
            )
        columns = StepColumns.of(schema)
        self._obs, self._stack = columns.obs, stack
        self._state, self._step = columns.state, columns.step
        self._length, self._burn_in, self._across = length, burn_in, across
        self._period, self._positions = period, Positions()

    @property
    def steps(self) -> int:
        return self._length

    @property
    def overlaps(self) -> bool:
        return self._across or self._period < self._length

    def count_steps(self, made: Items, draws: int) -> int:  # noqa: ARG002 - the mask says it
        return int(np.count_nonzero(made["mask"]))

    @property
    def reach(self) -> int:
        return self._length

    @property
    def crosses_episodes(self) -> bool:
        return self._across

    def _find_path(self, rows: Rows, index: Array) -> Array:
        """The rows of each sequence ``[B, L + 1]``, -1 from the first unknown row on."""
        if not self._across:
            return follow(rows, index, self._length)
        return np.ascontiguousarray(rows.chain(index, self._length))

    def _is_able(self, rows: Rows, index: Array, path: Array) -> Array:
        """Where the whole sequence is known, begins with a step, and has a warm step."""
        able: Array = (path[:, -1] >= 0) & ~rows.take(FINAL.name, index)
        if self._burn_in:
            beyond = np.where(able[:, None], path[:, self._burn_in : -1], index[:, None])
            able &= rows.take(FIRST.name, index) | ~rows.take(FINAL.name, beyond).all(axis=1)
        if self._period > 1:
            begins, distance = self._positions.find(rows, index)
            able &= (begins >= rows.first) & (distance % self._period == 0)
        return able if self._stack == 1 else able & has_stack(rows, index, self._stack)

    def _plan_path(self, rows: Rows, index: Array, path: Array) -> Plan:
        frames, lowest, steps = path, index, np.ascontiguousarray(path[:, :-1])
        if self._stack > 1:
            frames = stack(rows, path, self._stack)
            lowest = frames[:, 0, 0]
        takes = {name: (name, frames) for name in self._obs}
        takes |= {name: (name, steps) for name in self._step}
        takes |= {name: (name, index) for name in self._state}
        mask, first = ~rows.take(FINAL.name, steps), rows.take(FIRST.name, path)
        return Plan(takes, lowest, {"mask": mask, "warm": mask & self._is_warm(first), "first": first})

    def _is_warm(self, first: Array) -> Array:
        """Where ``burn_in`` rows or the beginning of an episode are behind, ``[B, L]``; ``first`` is ``[B, L + 1]``."""
        warm = np.logical_or.accumulate(first[:, :-1], axis=1)
        warm[:, self._burn_in :] = True
        return warm
