"""Recorded rows as an actor would send them: mapped, or made into self-contained items."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from common.data import PRIORITY, Array, Items, Leaves
from common.interfaces import Step
from common.lanes.stacking import Stacker
from common.parts import Parts
from common.spaces import from_columns


def as_sent(rows: Items, parts: Parts) -> Items:
    """The rows or items that an actor would send for one whole episode.

    Args:
        rows: of the episode, ``[T + 1, *shape]``, its final row included; with the columns ``parts.rows``.
        parts: of the run.

    Returns:
        Columns ``[n, *shape]`` of ``parts.schema``; first priorities are 1.
    """
    if parts.processors:
        return _processed(rows, parts)
    mapped = parts.row_map.map(rows) if parts.row_map is not None else rows
    if parts.has_priorities:
        mapped = {**mapped, PRIORITY.name: np.ones(len(rows["reward"]), np.float32)}
    return {column.name: mapped[column.name] for column in parts.schema.columns}


def _processed(rows: Items, parts: Parts) -> Items:
    processor = parts.processors[0]
    processor.reset()
    made = [items for step in _steps(rows, parts) if (items := processor.process(step)) is not None]
    parted = made or [parts.schema.empty(0)]
    return {c.name: np.concatenate([items[c.name] for items in parted]) for c in parts.schema.columns}


def _steps(rows: Items, parts: Parts) -> Iterator[Step]:
    obs, action = _observations(rows, parts), from_columns("action", rows)
    for t in range(len(rows["reward"]) - 1):
        end = bool(rows["terminated"][t]), bool(rows["truncated"][t])
        yield Step(obs[t], _at(action, t), float(rows["reward"][t]), obs[t + 1], *end)


def _observations(rows: Items, parts: Parts) -> list[Leaves]:
    """The T + 1 observations as the agent sees them."""
    frames = from_columns("obs", rows)
    count = len(rows["reward"])
    if parts.frame_stack == 1:
        return [_at(frames, t) for t in range(count)]
    stacker = Stacker(parts.frames, 1, parts.frame_stack)
    begins = [np.array([t == 0]) for t in range(count)]
    return [_copied(stacker.add(_at(frames, slice(t, t + 1)), begins[t])) for t in range(count)]


def _at(leaves: Leaves, t: int | slice) -> Leaves:
    return {path: leaf[t] for path, leaf in leaves.items()} if isinstance(leaves, dict) else leaves[t]


def _copied(stacks: Leaves) -> Leaves:
    """The stacks of the only lane."""
    if isinstance(stacks, dict):
        return {path: stack[0].copy() for path, stack in stacks.items()}
    lane: Array = stacks[0].copy()
    return lane
