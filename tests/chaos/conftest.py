"""The exercises in short: their actors leave the cores to others, and their trainers draw each row less often."""

from __future__ import annotations

import pytest

from tests.chaos import fleet
from tests.conftest import merged
from tests.e2e.test_by_hand import CALM


@pytest.fixture(autouse=True)
def calm_fleets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the fleets of a test the pace of a calm run; ``python -m tests.chaos`` runs them at full speed."""
    monkeypatch.setattr(fleet, "VALUES", merged(fleet.VALUES, {name: CALM[name] for name in ("env", "replay")}))
