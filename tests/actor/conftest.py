from __future__ import annotations

import pytest


@pytest.fixture
def _same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vector environments are seeded as plain ones are."""
    monkeypatch.setattr("actor.sampling.sampler.spread", lambda seed: seed)
