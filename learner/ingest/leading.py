"""Chooses the rank that a new actor joins."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from common.errors import RunDirectoryError
from common.wire.watched import Stamp, stamp_of
from learner.shared.actor_table import N_ROWS
from learner.shared.rank_table import FILE, RankTable

SETTLE_SECONDS: Final = 2.0
"""The time after which an actor that was let in or led is surely counted in the exchanges of the ranks."""


def choose(actors: Sequence[float], own: int) -> int:
    """The rank that a new actor should join: this one, unless another has fewer actors.

    If several ranks have the fewest actors, it is the first of them after this rank. So ranks that choose at the same
    time choose different ranks.
    """
    later = [(own + i) % len(actors) for i in range(1, len(actors) + 1)]
    least = min(later, key=lambda rank: actors[rank])
    return least if actors[least] < actors[own] else own


class Leading:
    """Spreads new actors evenly over the ranks.

    The figures of the ranks are exchanged about once a second. A burst of actors may come between two exchanges, so the
    actors that this rank has let in or led a moment ago are counted too. Other ranks count theirs in the same way, and
    each spreads the actors that come to it evenly; so their sum is even.

    Args:
        shared: directory of the shared files.
        rank: of this learner.
        n_ranks: the number of all ranks.
        clock: seconds, monotonic.
    """

    def __init__(self, shared: Path, rank: int, n_ranks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared, self._clock = shared, clock
        self.rank, self.n_ranks = rank, n_ranks
        self._table: RankTable | None = None
        self._stamp: Stamp | None = None
        """Of the file that was read."""
        self._recent = deque[tuple[float, int]](maxlen=N_ROWS)
        """When an actor came and to which rank it went, in the last ``SETTLE_SECONDS``."""
        self.led = 0
        """Actors that were led to other ranks."""

    def choose(self) -> str | None:
        """The address of the rank that a new actor should join; None: it may stay."""
        table = self._find_table()
        if table is None:
            return None
        chosen = choose(self._count(table), self.rank)
        return None if chosen == self.rank else table.addresses[chosen]

    def first_rank(self) -> str | None:
        """The address of rank 0; None if the ranks do not listen yet."""
        table = self._find_table()
        return None if table is None else table.addresses[0]

    def note(self, address: str | None) -> None:
        """Note that a new actor was led to ``address``, or let in here."""
        self.led += address is not None
        if self._table is not None:
            rank = self.rank if address is None else self._table.addresses.index(address)
            self._recent.append((self._clock(), rank))

    def _count(self, table: RankTable) -> list[float]:
        actors: list[float] = table.actors.tolist()
        while self._recent and self._recent[0][0] < self._clock() - SETTLE_SECONDS:
            self._recent.popleft()
        for _, rank in self._recent:
            actors[rank] += 1
        return actors

    def _find_table(self) -> RankTable | None:
        """The table of the ranks, read again when it was replaced; None with one rank, or before the ranks listen."""
        if self.n_ranks == 1:
            return None
        try:
            stamp = stamp_of(self._shared / FILE)
            if stamp != self._stamp:
                table = RankTable.open(self._shared)
                fits = (table.rank, len(table.addresses)) == (self.rank, self.n_ranks)
                self._table = table if fits else None
                self._recent.clear()
                self._stamp = stamp
        except (OSError, RunDirectoryError):  # The file is not there yet, or is being replaced at this moment.
            return None
        return self._table
