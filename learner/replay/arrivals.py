"""Rows at which draws can begin from now on, because other rows have arrived."""

from __future__ import annotations

import numpy as np

from common.data import FINAL, Array
from learner.replay.reader import ReplayReader


def find_arrivals(reader: ReplayReader, since: int) -> Array:
    """Find the rows at which a draw can begin now, but could not before the rows from ``since`` on came.

    Whether a draw can begin at a row is settled once ``View.reach`` rows follow it, or the final row of its episode.
    So this function looks only at rows at that distance before a new row, and at smaller distances before a new final
    row. It finds each row once.

    Returns:
        Absolute indices ``[n]``, ascending, each once.
    """
    new = np.arange(max(since, reader.first), reader.end)
    reach = reader.view.reach
    if reach and len(new):
        new = _walk_back(reader, new, reach)
    return new[reader.can_draw(new)]


def _walk_back(reader: ReplayReader, new: Array, reach: int) -> Array:
    """The rows ``reach`` before the new rows in their lanes, and all rows at most ``reach`` before new final rows."""
    at, is_end, found = new, reader.take(FINAL.name, new), list[Array]()
    for distance in range(1, reach + 1):
        at = reader.previous(at)
        goes_on = at >= 0
        if not reader.view.crosses_episodes:  # Earlier episodes were settled by their own final rows.
            goes_on &= ~reader.take(FINAL.name, np.maximum(at, reader.first))
        at, is_end = at[goes_on], is_end[goes_on]
        found.append(at if distance == reach else at[is_end])
    return np.unique(np.concatenate(found))
