"""A view that finds the rows ahead once, and uses them to decide where draws can begin and to plan the draws."""

from __future__ import annotations

import abc

from common.data import Array
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
