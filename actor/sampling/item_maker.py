"""Self-contained items in the place of rows: a user's own step processors see the steps of their lanes, one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

import numpy as np

from common.data import Array, Items, Leaves, Schema
from common.interfaces import Step, StepProcessor
from common.lanes.lanes import Round
from common.lanes.stacking import Stacker
from common.leaves import copy_leaves, pick_leaves, put_leaves


def next_of(outcome: Round, stacker: Stacker) -> Leaves:
    """The agent's observations after a step, the last ones where an episode ended, ``[n, *shape]``: a copy."""
    frames = copy_leaves(outcome.obs)
    if outcome.ended is not None and outcome.final_obs is not None:
        put_leaves(frames, outcome.ended, outcome.final_obs)
    return stacker.peek(frames)


class ItemMaker:
    """Gathers the items that step processors make; the counterpart of ``RowRecorder``."""

    version = 0
    """Items carry no version."""

    def __init__(self, schema: Schema, processors: Sequence[StepProcessor], stacker: Stacker) -> None:
        self._schema, self._processors, self._stacker = schema, processors, stacker
        self._made: list[Items] = []
        self.rows = 0

    def begin(self, obs: Leaves, begins: Array | None, actions: Leaves, extras: Mapping[str, Array] | None) -> None:  # noqa: ARG002 - items have no extras of the agent
        """Take the observations and actions of a round before its step, see ``RowRecorder.begin``."""
        self._obs, self._actions = copy_leaves(obs), deepcopy(actions)  # An agent may use its array again.
        if begins is not None:
            for lane in np.flatnonzero(begins).tolist():
                self._processors[lane].reset()

    def end(self, outcome: Round) -> None:
        """Have the step processors make items of the step.

        Raises:
            SchemaMismatchError: items do not fit the schema.
        """
        after = next_of(outcome, self._stacker)
        actions = self._actions if outcome.action is None else outcome.action
        taken = range(len(outcome.reward)) if outcome.taken is None else np.flatnonzero(outcome.taken).tolist()
        for lane in taken:
            step = Step(
                pick_leaves(self._obs, lane),
                pick_leaves(actions, lane),
                float(outcome.reward[lane]),
                pick_leaves(after, lane),
                bool(outcome.terminated[lane]),
                bool(outcome.truncated[lane]),
            )
            self.add(self._processors[lane].process(step))

    def add(self, items: Items | None) -> None:
        """Gather the items that a step processor has made.

        Raises:
            SchemaMismatchError: they do not fit the schema.
        """
        if items is not None:
            self.rows += self._schema.count(items)
            # A step processor may write into its arrays again.
            self._made.append({name: np.array(column) for name, column in items.items()})

    def items(self) -> Items:
        """The items that were gathered."""
        if not self._made:
            return self._schema.empty(0)
        return {c.name: np.concatenate([items[c.name] for items in self._made]) for c in self._schema.columns}

    def clear(self) -> None:
        """Forget the items that were gathered."""
        self._made, self.rows = [], 0
