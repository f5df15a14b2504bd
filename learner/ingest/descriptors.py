"""File descriptors: each connection takes one, and a process that has none left can accept nobody."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)
MOST: Final = 65_536
"""The limit is not raised beyond this number."""
RESERVED: Final = 64
"""Kept free of actors' connections: for files, and for scrapers of /metrics."""
NEARLY: Final = 0.8
LOOK_SECONDS: Final = 10.0
_OPEN = Path("/proc/self/fd")


def raise_descriptor_limit() -> int:
    """Raise this process's soft limit (often 1024) to its hard one, or to 65,536; the limit that is in force then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft if soft != resource.RLIM_INFINITY else MOST


def count_descriptors() -> int:
    """Those that this process has open."""
    return sum(1 for _ in _OPEN.iterdir()) - 1  # One was for looking.


def connections_within(wanted: int, limit: int) -> int:
    """How many of the wanted connections fit below the limit; the log tells if they are not all."""
    fit = max(1, limit - count_descriptors() - RESERVED)
    if fit < wanted:
        log.warning("only %d of %d connections fit into %d file descriptors (ulimit -n)", fit, wanted, limit)
    return min(fit, wanted)


class DescriptorWatch:
    """Tells when most descriptors are taken, and again only after it was better.

    Args:
        limit: those that there can be.
        count: those that are open.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        limit: int,
        count: Callable[[], int] = count_descriptors,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._count, self._clock = limit, count, clock
        self._next, self._told = clock(), False

    def tick(self) -> None:
        """Look, every ten seconds at most."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + LOOK_SECONDS
        found = self._count()
        scarce = found >= NEARLY * self._limit
        if scarce and not self._told:
            log.warning("%d of %d file descriptors are open; raise ulimit -n (LimitNOFILE)", found, self._limit)
        self._told = scarce
