"""The page of sweeps has each setting as the model says."""

from __future__ import annotations

from learner.sweeps.sweep_config import SweepConfig
from pages.sweeps import PATH, fill_in
from tests.conftest import ROOT

TEXT = (ROOT / PATH).read_text()


def test_the_page_has_the_settings_as_they_are() -> None:
    assert fill_in(TEXT) == TEXT
    assert all(f"\n| `{key}` |" in TEXT for key in SweepConfig.model_fields)


def test_the_page_shows_the_example_as_it_is() -> None:
    example = (ROOT / "examples" / "sweeps" / "cartpole.yaml").read_text()
    assert "".join(line for line in example.splitlines(keepends=True) if not line.startswith("#")) in TEXT
