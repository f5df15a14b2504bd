"""The drawings of the tour show steps whose files exist, and are those that the table of steps gives."""

from __future__ import annotations

import pytest

from pages.walks import WALKS, Walk, draw
from tests.conftest import ROOT


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.name)
def test_each_step_names_a_file_that_exists(walk: Walk) -> None:
    assert [step.file for step in walk.steps if not (ROOT / step.file).is_file()] == []


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.name)
def test_the_drawing_in_the_repository_shows_its_steps(walk: Walk) -> None:
    assert (ROOT / walk.path).read_text() == draw(walk), "make pages"
