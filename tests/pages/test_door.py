"""The pages of the API have each name that ``import crossborder`` offers."""

from __future__ import annotations

import re

import pytest

from crossborder.door import public_names, read_sections
from pages.door import INDEX, fill_index, fill_page, find_pages
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("heading", read_sections())
def test_a_page_has_the_names_under_its_title(heading: str) -> None:
    text = find_pages()[heading].read_text()
    assert fill_page(text) == text, "make pages"
    assert re.findall(r"^::: crossborder\.(\w+)$", text, re.MULTILINE) == [*read_sections()[heading]]


def test_the_first_page_has_all_names() -> None:
    text = INDEX.read_text()
    assert fill_index(text) == text, "make pages"
    assert re.findall(r"#crossborder\.(\w+)\)", text) == [*public_names()]
