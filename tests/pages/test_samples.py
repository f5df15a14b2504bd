"""Pages show the files that they name as these are."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages.samples import fill_in, find_samples


@pytest.mark.parametrize("path", find_samples(), ids=lambda path: path.stem)
def test_a_page_shows_its_files_as_they_are(path: Path) -> None:
    text = path.read_text()
    assert fill_in(text) == text
    assert "```" in text


def test_a_file_stands_between_its_marks_in_its_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("print(1)\n")
    marks = "<!-- file mine.py -->\nold\n<!-- end -->\n"
    shown = "<!-- file mine.py -->\n\n```python\nprint(1)\n```\n\n<!-- end -->\n"
    assert fill_in(f"before\n{marks}between\n{marks}") == f"before\n{shown}between\n{shown}"
