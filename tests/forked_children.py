"""Children of the test process that need torch, forked from the fork server, where each would import torch anew.

A forked child is nobody's child, so a test that counts the children of its process starts them as users do.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import pytest

from common.process import child
from tests.conftest import fork_server
from tests.fork_server import Forked

NEED_TORCH: Final = {"actor.worker", "learner.commands.sweep_child", "learner.evaluation.evaluator_child"}
"""The modules of children that import torch at their start."""


@contextmanager
def forked_children() -> Iterator[None]:
    """In this context ``common.process.child.Child`` forks the processes that need torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": _start}))
        yield


def _start(
    command: Sequence[str], *, pass_fds: Sequence[int], env: Mapping[str, str], **others: Any
) -> Forked | subprocess.Popen[str]:
    _python, _unsafe_path, _m, module, *arguments = command
    if module in NEED_TORCH:
        return fork_server().start_piped(module, arguments, pass_fds=pass_fds, environment=env)
    return subprocess.Popen(command, pass_fds=pass_fds, env=env, **others)
