from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from common.process.child import Child
from tests.common.process.child_scripts import MODULE
from tests.conftest import ROOT

StartChild = Callable[..., Child]


@pytest.fixture
def start_child(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartChild]:
    """Starts a real child that runs a function of ``child_scripts``; children that still run at the end are ended."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    children: list[Child] = []

    def _start_child(life: str, *, env: dict[str, str] | None = None, fds: tuple[int, ...] = (), **boot: Any) -> Child:
        children.append(Child(f"child-{life}", MODULE, {"life": life, **boot}, pass_fds=fds, env=env))
        return children[-1]

    yield _start_child
    for child in children:
        child.end(0)
