"""File descriptors: each connection takes one, and a process without a free one can accept no connection."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)
MAX_LIMIT: Final = 65_536
"""The limit is not raised beyond this number."""
RESERVED: Final = 64
"""Descriptors that connections of actors may not take: for files, and for scrapers of /metrics."""
SCARCE: Final = 0.8
"""The log warns when more than this part of the limit is taken."""
LOOK_SECONDS: Final = 10.0
_OPEN = Path("/proc/self/fd")


def raise_descriptor_limit() -> int:
    """Raise this process's soft limit (often 1024) to its hard limit, or to 65,536; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_LIMIT if hard == resource.RLIM_INFINITY else min(hard, MAX_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft if soft != resource.RLIM_INFINITY else MAX_LIMIT


def count_descriptors() -> int:
    """The descriptors that this process has open."""
    return sum(1 for _ in _OPEN.iterdir()) - 1  # Listing the directory takes one.


def connections_within(wanted: int, limit: int) -> int:
    """How many of the wanted connections fit below the limit; the log says so if not all of them fit."""
    fit = max(1, limit - count_descriptors() - RESERVED)
    if fit < wanted:
        log.warning("only %d of %d connections fit into %d file descriptors (ulimit -n)", fit, wanted, limit)
    return min(fit, wanted)


class DescriptorWatch:
    """Warns in the log when most descriptors are taken, and warns again only after enough were free in between.

    Args:
        limit: descriptors that can be open.
        count: descriptors that are open.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        limit: int,
        count: Callable[[], int] = count_descriptors,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._count, self._clock = limit, count, clock
        self._next_look, self._has_warned = clock(), False

    def tick(self) -> None:
        """Count the open descriptors, at most once in ``LOOK_SECONDS``."""
        if self._clock() < self._next_look:
            return
        self._next_look = self._clock() + LOOK_SECONDS
        found = self._count()
        scarce = found >= SCARCE * self._limit
        if scarce and not self._has_warned:
            log.warning("%d of %d file descriptors are open; raise ulimit -n (LimitNOFILE)", found, self._limit)
        self._has_warned = scarce
