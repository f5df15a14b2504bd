"""Children that need torch, forked from the fork server, where each would import torch anew.

A forked child is nobody's child. So tests that count or kill the children of a process have the mark ``own_children``:
their children are started as users start them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from common.process import child
from tests.conftest import fork_server
from tests.fork_server import CHILDREN_ARE_FORKED, forking


@contextmanager
def forked_children() -> Iterator[None]:
    """In this context ``common.process.child.Child`` forks processes, here and in the commands that are started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "subprocess", forking(fork_server))
        patch.setenv(CHILDREN_ARE_FORKED, "1")
        yield


@contextmanager
def own_children() -> Iterator[None]:
    """In this context, within that of ``forked_children``, processes have children of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "subprocess", subprocess)
        patch.delenv(CHILDREN_ARE_FORKED)
        yield
