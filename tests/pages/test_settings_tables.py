"""The pages of sweeps and of clusters have each setting as the model says, and the examples as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.settings import Settings
from pages.settings_tables import TABLES, fill_in
from tests.conftest import ROOT

EXAMPLES = {"docs/clusters.md": "deploy/ssh/hosts.yaml", "docs/sweeps-and-plots.md": "examples/sweeps/cartpole.yaml"}


@pytest.mark.parametrize(("path", "model"), TABLES.items(), ids=lambda value: getattr(value, "stem", ""))
def test_a_page_has_the_settings_as_they_are(path: Path, model: type[Settings]) -> None:
    text = (ROOT / path).read_text()
    assert fill_in(text, model) == text
    assert all(f"\n| `{key}` |" in text for key in model.model_fields)


@pytest.mark.parametrize(("page", "example"), EXAMPLES.items())
def test_a_page_shows_its_example_as_it_is(page: str, example: str) -> None:
    lines = (ROOT / example).read_text().splitlines(keepends=True)
    assert "".join(line for line in lines if not line.startswith("#")) in (ROOT / page).read_text()
