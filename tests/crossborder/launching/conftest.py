from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crossborder.launching.hosts import StandInHosts


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInHosts:
    """Hosts on this machine, which an ``ssh`` that comes first on PATH reaches."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return StandInHosts(tmp_path)
