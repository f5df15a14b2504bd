"""Sockets of another user of this host. Linux gives a socket the effective user of the thread that makes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

NOBODY: Final = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make sockets of another user")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Meanwhile, all sockets that this process makes are another user's."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
