"""Where the ranks listen and how many actors each has, so that each can lead new actors to a rank with fewer actors."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from common.wire.address import join_address, split_address
from learner.ranks.group import Group
from learner.shared.rank_table import RankTable

ADDRESS_BYTES: Final = 300
SHARE_SECONDS: Final = 1.0


def share_addresses(group: Group, address: str, shared: Path) -> RankTable:
    """Exchange the addresses of all ranks, and write them for ingest.

    Raises:
        RankLostError: a rank has ended.
        RunDirectoryError: the table cannot be written.
    """
    host, port = split_address(address)
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        host = socket.gethostname()
    own = join_address(host, port)
    addresses = [data.decode() for data in group.gather(own.encode(), ADDRESS_BYTES)]
    return RankTable.create(shared, group.place.rank, addresses)


class ActorCounts:
    """Tells ingest how many actors each rank has, about once a second.

    Args:
        table: shared with ingest.
        clock: seconds, monotonic.
    """

    def __init__(self, table: RankTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._table, self._clock = table, clock
        self._next_at = clock()

    def share(self, actors: Sequence[float]) -> None:
        """Write the number of actors of each rank; no numbers before the first exchange."""
        now = self._clock()
        if now >= self._next_at and actors:
            self._next_at = now + SHARE_SECONDS
            self._table.actors[:] = actors
