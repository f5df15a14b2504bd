"""Writes what happens in the lanes into the columns of rows, in place, and a round at a time.

A round costs few operations on whole columns, and none for values that are nearly always the same: those are there
already when a block of rows begins, and are written only where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common.data import FINAL, FIRST, INTERVENED, LANE, PRIORITY, VERSION, Array, Column, Items, Leaves, Schema
from common.errors import PluginError
from common.interfaces import Agent, EnvSpec
from common.lanes.lanes import Round
from common.leaves import pick_leaves
from common.spaces import columns_of, from_columns, to_columns

_ARRAY = np.ndarray  # A global name is found faster than an attribute.
_FLAGS = ("terminated", "truncated", INTERVENED.name, FIRST.name, FINAL.name)


class RowRecorder:
    """The rows of n lanes that have been recorded and not yet been taken.

    Args:
        schema: of the rows.
        n: lanes; 0 if each round names its lanes.
        notes: further columns, which ``note`` writes and which are no part of the rows.
    """

    def __init__(self, schema: Schema, n: int, notes: Sequence[Column] = ()) -> None:
        self._schema, self._n, self._lanes = schema, n, np.arange(n, dtype=LANE.dtype)
        self._has_one_lane = n == 1
        self._all = (*schema.columns, *notes)
        self._version = 0
        self._end = 0  # Where the next round is written.
        self._gaps = 0  # The number of rows before it of lanes that took no step; ``_kept`` is False there.
        self._dtype: np.dtype[Any] | None = None  # Of the actions; None if they have several leaves.
        self._shape: tuple[int, ...] = ()
        self._acts_by_number = False
        self._columns: Items = {}
        self._allocate(max(4 * n, 256))

    def _allocate(self, capacity: int) -> None:
        """Make room for more rows; those that are there stay."""
        self._close_gaps()
        columns, self._columns = self._columns, {}
        for column in self._all:
            made = np.zeros((capacity, *column.shape), column.dtype)
            if columns:
                made[: self._end] = columns[column.name][: self._end]
            self._columns[column.name] = made
        self._columns[VERSION.name][self._end :] = self._version
        self._kept = np.ones(capacity, bool)
        self._last_begin = capacity - 2 * self._n  # A round adds a row for each lane, and may add a final row for each.
        obs_columns = self._schema.named("obs")
        self._flags = [self._columns[name] for name in _FLAGS if name in self._columns]
        own = {*_FLAGS, "reward", *(column.name for column in obs_columns)}
        own |= {LANE.name} if self._has_one_lane else set()
        self._repeated = [self._columns[column.name] for column in self._schema.columns if column.name not in own]
        self._reward = self._columns["reward"]
        # One column, or for a structured space a dict of columns by path.
        self._obs, self._action = (from_columns(name, self._columns) for name in ("obs", "action"))
        # A single lane writes elements instead of slices, which is faster. numpy sets no number, such as an observation
        # of a Discrete space, to an array of one element.
        is_array = isinstance(self._obs, _ARRAY) and self._obs.ndim > 1
        self._is_single = self._has_one_lane and is_array and isinstance(self._action, _ARRAY)
        if isinstance(self._action, _ARRAY):
            self._dtype, self._shape = self._action.dtype, (self._n, *self._action.shape[1:])
            self._acts_by_number = self._action.ndim == 1

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._end - self._gaps

    @property
    def version(self) -> int:
        """Opt steps of the model that chooses the actions from now on."""
        return self._version

    @version.setter
    def version(self, opt_steps: int) -> None:
        self._version = opt_steps
        self._columns[VERSION.name][self._end :] = opt_steps

    def begin(
        self,
        obs: Leaves,
        begins: Array | None,
        actions: Leaves,
        extras: Mapping[str, Array] | None,
        lanes: Array | None = None,
    ) -> None:
        """Record a round before its step, since environments may write the next observations into the same arrays.

        Args:
            obs: ``[n, *shape]``.
            begins: the lanes whose episodes begin, ``[n]`` bool; None: none.
            actions: ``[n, *action_shape]``.
            extras: further columns, ``[n, *shape]``, such as those of the agent; None if there are none.
            lanes: the lanes of this round, ``[n]``, all different; None: all lanes.
        """
        if lanes is not None:
            self._name_lanes(lanes)
        elif self._end > self._last_begin:
            self._close_gaps()
            if 2 * self._end > self._last_begin:  # Otherwise gaps would have to be closed again soon.
                self._allocate(2 * len(self._reward))
        start = self._end
        if type(actions) is not _ARRAY or actions.dtype is not self._dtype or actions.shape != self._shape:
            self.require_actions(actions, self._n)
        if self._is_single:
            self._obs[start] = obs
            self._action[start] = actions.item() if self._acts_by_number else actions  # type: ignore[union-attr]
        else:
            at = self._at
            _write(self._obs, at, obs)
            _write(self._action, at, actions)
            self._columns[LANE.name][at] = self._lanes
        if begins is not None:
            self._columns[FIRST.name][self._at] = begins
        if extras:
            for name, array in extras.items():
                self._columns[name][self._at] = array

    def extend(self, obs: Sequence[bytes], actions: Sequence[bytes], rewards: Sequence[float]) -> None:
        """Record steps of the only lane, all at once: the bytes of each observation and action, and the rewards."""
        needed = self._end + len(rewards)
        if needed > len(self._reward):
            self._allocate(2 * needed)  # It closes gaps, so the steps may begin at an earlier row now.
        at = slice(self._end, self._end + len(rewards))
        for column, found in ((self._obs, obs), (self._action, actions)):
            column[at] = np.frombuffer(b"".join(found), column.dtype).reshape(-1, *column.shape[1:])
        self._reward[at] = rewards
        self._end = at.stop

    def _name_lanes(self, lanes: Array) -> None:
        """Have the next round be one of these lanes."""
        self._n, self._lanes = len(lanes), lanes
        self._shape = (self._n, *self._shape[1:])
        needed = self._end + 2 * self._n  # A row and a final row for each lane.
        if needed > len(self._reward):
            self._allocate(max(needed, 2 * len(self._reward)))

    @property
    def _at(self) -> slice:
        """The rows of the round that has begun."""
        return slice(self._end, self._end + self._n)

    def require_actions(self, actions: Leaves, n: int) -> None:
        """Check the actions of n lanes against their columns.

        Raises:
            PluginError: they have another dtype or shape.
        """
        column = self._action
        given, wanted = ({"": leaves} if not isinstance(leaves, dict) else leaves for leaves in (actions, column))
        if _all_fit(given, wanted, n):
            return
        raise PluginError(
            f"agent.sample: expected actions for {n} observations, {_describe(column, n)}, found {_describe(actions)}"
        )

    def note(self, name: str, leaves: Leaves) -> None:
        """Write further columns of the round that has begun, before its ``end``."""
        for column, array in to_columns(name, leaves).items():
            self._columns[column][self._at] = array

    def end(self, outcome: Round) -> None:
        """Record the step of the round."""
        if self._is_single:
            self._reward[self._end] = outcome.reward.item()
        else:
            self._reward[self._at] = outcome.reward
        if outcome.info:
            for key, values in outcome.info.items():
                self._columns[f"info/{key}"][self._at] = values
        self._end += self._n
        if outcome.ended is not None or outcome.taken is not None or outcome.action is not None:
            self._end_unusual(slice(self._end - self._n, self._end), outcome)

    def _end_unusual(self, at: slice, outcome: Round) -> None:
        """Record a round in which an episode ended, a lane took no step, or a person or safety layer acted."""
        if outcome.action is not None and outcome.intervened is not None:
            _write(self._action, at, outcome.action)
            self._columns[INTERVENED.name][at] = outcome.intervened
        if outcome.ended is not None:
            self._columns["terminated"][at] = outcome.terminated
            self._columns["truncated"][at] = outcome.truncated
        if outcome.taken is not None:
            self._kept[at] = outcome.taken
            self._gaps += self._n - int(np.count_nonzero(outcome.taken))
        if outcome.ended is not None and outcome.final_obs is not None:
            self._add_final_rows(outcome.ended + at.start, outcome.final_obs)

    def _close_gaps(self) -> None:
        """Remove the rows of lanes that took no step, all at once: that costs less than in each round."""
        if not self._gaps:
            return
        kept, end = self._kept[: self._end], self.rows
        for column in self._columns.values():
            column[:end] = column[: self._end][kept]
        for flag in self._flags:
            flag[end : self._end] = False
        self._columns[VERSION.name][end : self._end] = self._version
        kept[:] = True
        self._end, self._gaps = end, 0

    def _add_final_rows(self, ended: Array, final_obs: Leaves) -> None:
        """Add a final row after each of the rows ``ended``: only its observation counts."""
        at = slice(self._end, self._end + len(ended))
        for column in self._repeated:
            column[at] = column.take(ended, 0)  # In a quarter of the time of an index.
        self._reward[at] = 0
        self._columns[FINAL.name][at] = True
        _write(self._obs, at, final_obs)
        self._end = at.stop

    def items(self) -> Items:
        """The rows, valid until ``clear``."""
        self._close_gaps()
        return {column.name: self._columns[column.name][: self._end] for column in self._schema.columns}

    def notes(self, name: str) -> Leaves:
        """What ``note`` has written, ``[rows, *shape]``, valid until ``clear``."""
        self._close_gaps()
        rows = slice(0, self._end)
        found: Leaves = from_columns(name, {column: array[rows] for column, array in self._columns.items()})
        return found

    def clear(self) -> None:
        """Begin the next rows."""
        self._close_gaps()
        for flag in self._flags:
            flag[: self._end] = False
        self._columns[VERSION.name][: self._end] = self._version
        self._end = 0


def _write(columns: Array | dict[str, Array], at: slice, leaves: Leaves) -> None:
    if not isinstance(columns, dict):
        columns[at] = leaves
        return
    for path, column in columns.items():
        column[at] = leaves[path]


def _all_fit(leaves: dict[str, Array], columns: dict[str, Array], n: int) -> bool:
    """Whether leaves of n lanes have the dtypes and shapes of the columns."""
    return leaves.keys() == columns.keys() and all(
        isinstance(leaf := leaves[path], np.ndarray)
        and (leaf.dtype, leaf.shape) == (column.dtype, (n, *column.shape[1:]))
        for path, column in columns.items()
    )


def _describe(columns: object, n: int | None = None) -> str:
    """The dtypes and shapes of leaves, of n lanes if n is given, for messages."""
    if isinstance(columns, dict):
        return ", ".join(f"{path}: {_describe(leaf, n)}" for path, leaf in columns.items())
    if not isinstance(columns, np.ndarray):
        return type(columns).__name__
    return f"{columns.dtype} {list(columns.shape) if n is None else [n, *columns.shape[1:]]}"


SEEN, NEXT = "seen", "next_obs"
"""The names under which the recorder notes the agent's observations before and after each step."""
_ROWS_ALONE = {FIRST.name, FINAL.name, LANE.name}


def noted_columns(spec: EnvSpec) -> tuple[Column, ...]:
    """The columns of the agent's observations before and after each step: with ``env.frame_stack`` they are stacks."""
    return tuple(column for name in (SEEN, NEXT) for column in columns_of(name, spec.observation_space))


def add_priority(items: Items, agent: Agent) -> Items:
    """Self-contained items with a column ``priority``, float32 [n]: their absolute TD errors under the present model.

    Raises:
        PluginError: the agent does not give one error for each item.
    """
    return {**items, PRIORITY.name: _errors(items, len(next(iter(items.values()))), agent)}


def add_priority_to_rows(rows: Items, seen: Leaves, after: Leaves, agent: Agent) -> Items:
    """Rows with a column ``priority``, float32 [n]: the absolute TD errors of their steps; 0 for final rows.

    Args:
        rows: the columns ``[n, *shape]``.
        seen: the agent's observations before the steps, ``[n, *shape]``.
        after: the true observations after them; those of final rows do not count.
        agent: its present model counts.

    Raises:
        PluginError: the agent does not give one error for each step.
    """
    steps = ~rows[FINAL.name]
    priority = np.zeros(len(steps), PRIORITY.dtype)
    if steps.any():
        kept = {
            name: column[steps]
            for name, column in rows.items()
            if name not in _ROWS_ALONE and name != "obs" and not name.startswith("obs/")
        }
        before, later = (to_columns(name, pick_leaves(given, steps)) for name, given in (("obs", seen), (NEXT, after)))
        priority[steps] = _errors({**before, **kept, **later}, int(np.count_nonzero(steps)), agent)
    return {**rows, PRIORITY.name: priority}


def _errors(items: Items, count: int, agent: Agent) -> Array:
    td_error: Array = np.abs(agent.td_error(items)).astype(PRIORITY.dtype)
    if td_error.shape != (count,):
        raise PluginError(f"{type(agent).__name__}.td_error: expected shape [{count}], found {list(td_error.shape)}")
    return td_error
