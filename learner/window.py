"""Means of an agent's records over the opt steps since the last write."""

from __future__ import annotations

from collections import defaultdict
from typing import SupportsFloat

from common.data import Record

_FOLD = 256


class RecordWindow:
    """Collects values without reading them (a tensor on a GPU would stall the step) until ``means`` is asked."""

    def __init__(self) -> None:
        self._pending: defaultdict[str, list[SupportsFloat]] = defaultdict(list)
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)

    def add(self, record: Record) -> None:
        for key, value in record.items():
            pending = self._pending[key]
            pending.append(value)
            if len(pending) >= _FOLD:
                self._fold(key)

    def _fold(self, key: str) -> None:
        pending = self._pending[key]
        self._sums[key] += sum(map(float, pending))
        self._counts[key] += len(pending)
        pending.clear()

    def means(self) -> dict[str, float]:
        """The mean of each key since the last call; the window starts again."""
        for key in list(self._pending):
            self._fold(key)
        means = {key: self._sums[key] / count for key, count in self._counts.items() if count}
        self._sums.clear()
        self._counts.clear()
        return means
