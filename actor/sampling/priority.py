"""First priorities from the actors (Ape-X, Horgan et al., arXiv:1803.00933, 3)."""

from __future__ import annotations

import numpy as np

from common.data import FINAL, FIRST, LANE, PRIORITY, Array, Column, Items, Leaves
from common.errors import PluginError
from common.interfaces import Agent, EnvSpec
from common.leaves import pick_lanes
from common.spaces import columns_of, to_columns

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
        before, later = (to_columns(name, pick_lanes(given, steps)) for name, given in (("obs", seen), (NEXT, after)))
        priority[steps] = _errors({**before, **kept, **later}, int(np.count_nonzero(steps)), agent)
    return {**rows, PRIORITY.name: priority}


def _errors(items: Items, count: int, agent: Agent) -> Array:
    td_error: Array = np.abs(agent.td_error(items)).astype(PRIORITY.dtype)
    if td_error.shape != (count,):
        raise PluginError(f"{type(agent).__name__}.td_error: expected shape [{count}], found {list(td_error.shape)}")
    return td_error
