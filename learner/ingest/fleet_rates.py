"""How fast the figures of single actors grow: the rates behind the metrics of all actors together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from common.data import Array

RATE_SECONDS: Final = 10.0
"""The time between two looks at the actors. An actor reports at least once a second, so a rate is right to a tenth."""
FIRST_RATE_SECONDS: Final = 1.0
"""The time between the first two looks, so that a run has rates soon."""
GROWING: Final = {
    "env_steps_per_second": ("Environment steps of an actor per second.", "env_steps"),
    "env_share": ("Share of an actor's time in environments.", "env_seconds"),
    "inference_share": ("Share of an actor's time spent on choosing actions.", "inference_seconds"),
    "wait_share": ("Share of an actor's time for which it was held back.", "wait_seconds"),
}
"""By metric: what it is, and the column of the actor table whose growth it is."""


class FleetRates:
    """The growth of some columns of the actor table, for each actor that was online at the last two looks.

    A mean over an actor's life would hide that it has become slow.

    The event loop calls ``tick``, and the metrics' thread reads ``rates``. A look replaces ``rates`` as a whole, so the
    reader finds the rates of one look.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at = clock, clock()
        self._before: Array | None = None
        self.rates: Mapping[str, Array] = {}
        """By column: its growth per second, float64 [actors]; empty before the second look."""

    def tick(self, find_online_rows: Callable[[], Array]) -> None:
        """Look at the actors, if it is time."""
        now = self._clock()
        if self._before is None:
            self._at, self._before = now, find_online_rows()
        if now < self._at + (RATE_SECONDS if self.rates else FIRST_RATE_SECONDS):
            return
        rows, before, seconds = find_online_rows(), self._before, now - self._at
        _, here, there = np.intersect1d(rows["incarnation"], before["incarnation"], return_indices=True)
        grown = {name: rows[name][here] - before[name][there] for _, name in GROWING.values()}
        self.rates = {name: np.maximum(growth, 0) / seconds for name, growth in grown.items()}
        self._at, self._before = now, rows
