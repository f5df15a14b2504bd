"""Children that need torch, forked from the fork server, where each would import torch anew.

A forked child is nobody's child, so a test that counts the children of a process starts them as users do.
"""

from __future__ import annotations

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
        patch.setattr(child, "subprocess", forking(fork_server()))
        patch.setenv(CHILDREN_ARE_FORKED, "1")
        yield
