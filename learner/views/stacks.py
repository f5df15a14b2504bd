"""The rows behind a row, for stacks of frames: the replay stores one frame for each row, and draws make the stacks."""

from __future__ import annotations

import numpy as np

from common.data import FIRST, Array
from learner.replay.view import Rows


def stack(rows: Rows, index: Array, k: int) -> Array:
    """The rows whose frames make the stack at each row: the last ``k`` of its episode, oldest first.

    The first row is repeated if the episode has fewer rows, as ``env.frame_stack`` does it for the actor's policy.

    Returns:
        ``[*index.shape, k]``; the lowest is at position 0.
    """
    return _walk_back(rows, index, k)[0]


def has_stack(rows: Rows, index: Array, k: int) -> Array:
    """At which rows the whole stack is there, bool; elsewhere a row was overwritten, or never arrived."""
    return _walk_back(rows, index, k)[1]


def _walk_back(rows: Rows, index: Array, k: int) -> tuple[Array, Array]:
    found = np.empty((*index.shape, k), np.int64)
    found[..., -1] = index
    whole = np.ones(index.shape, np.bool_)
    for t in range(k - 2, -1, -1):
        later = found[..., t + 1]
        begins = rows.take(FIRST.name, later)
        before = np.where(begins, later, rows.previous(later))  # The row before a first row is of another episode.
        whole &= before >= 0
        found[..., t] = np.where(before < 0, later, before)
    return found, whole
