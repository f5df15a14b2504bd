"""The rows ahead of a row, within its episode, and the rows behind it, whose frames make a stack."""

from __future__ import annotations

import abc

import numpy as np

from common.data import FINAL, FIRST, Array
from learner.replay.view import Plan, Rows, View


class PathView(View):
    """Finds the rows ahead of each row once, for ``can_draw`` and ``plan`` together in ``choose``."""

    @abc.abstractmethod
    def _find_path(self, rows: Rows, index: Array) -> Array:
        """The rows ahead of the rows ``[B]``, ``[B, …]``; -1 from the first unknown row on."""

    @abc.abstractmethod
    def _is_able(self, rows: Rows, index: Array, path: Array) -> Array:
        """At which of the rows ``[B]`` with these paths a draw can begin, ``[B]`` bool."""

    @abc.abstractmethod
    def _plan_path(self, rows: Rows, index: Array, path: Array) -> Plan:
        """How to assemble the draws that begin at the rows ``[B]`` with these paths."""

    def can_draw(self, rows: Rows, index: Array) -> Array:
        return self._is_able(rows, index, self._find_path(rows, index))

    def plan(self, rows: Rows, index: Array) -> Plan:
        return self._plan_path(rows, index, self._find_path(rows, index))

    def choose(self, rows: Rows, tries: Array, size: int) -> tuple[Array, Plan]:
        path = self._find_path(rows, tries)
        able = self._is_able(rows, tries, path)
        index = tries[able][:size]
        return index, self._plan_path(rows, index, path[able][:size])


def follow(rows: Rows, index: Array, n: int) -> Array:
    """The rows ``[B]`` and the ``n`` rows that follow each of them, up to the final row, which is then repeated.

    Returns:
        Their indices ``[B, n + 1]``, -1 from where the next row is not known.
    """
    path = np.ascontiguousarray(rows.chain(index, n))
    known = path >= 0
    final = rows.take(FINAL.name, path if known.all() else np.where(known, path, index[:, None])) & known  # [B, n + 1]
    ended = final.any(axis=1, keepdims=True)
    if ended.any():
        ends = final.argmax(axis=1, keepdims=True)
        path = np.where(ended & (np.arange(n + 1) > ends), np.take_along_axis(path, ends, axis=1), path)
    return path


def stack(rows: Rows, index: Array, k: int) -> Array:
    """The rows whose frames make the stack at each row: the last ``k`` of its episode, oldest first.

    The replay stores one frame for each row, and draws make the stacks. The first row is repeated if the episode has
    fewer rows, as ``env.frame_stack`` does it for the actor's policy.

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
