from __future__ import annotations

from pathlib import Path

import pytest

from pages.release import find_faults

VERSION = "1.2.3"
FILES = {
    "pyproject.toml": '[project]\nversion = "{}"\n',
    "CITATION.cff": "version: {}\n",
    "CHANGELOG.md": "# Changelog\n\n## {}\n\n- A change.\n\n## 1.2.2\n",
    "dist/crossborder-{}-py3-none-any.whl": "",
    "dist/crossborder-{}.tar.gz": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "dist").mkdir()
    for name, text in FILES.items():
        (tmp_path / name.format(VERSION)).write_text(text.format(VERSION))
    return tmp_path


def test_a_release_is_fit_if_all_files_have_the_version_of_its_tag(root: Path) -> None:
    assert find_faults(f"v{VERSION}", root) == []


@pytest.mark.parametrize("name", ["pyproject.toml", "CITATION.cff", "CHANGELOG.md"])
def test_a_file_with_another_version_is_named(name: str, root: Path) -> None:
    (root / name).write_text(FILES[name].format("1.2.2"))
    (fault,) = find_faults(f"v{VERSION}", root)
    assert name in fault
    assert fault.endswith("expected 1.2.3, found 1.2.2")


def test_changes_that_are_not_released_are_named(root: Path) -> None:
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 1.2.3\n")
    assert find_faults(f"v{VERSION}", root) == ["the first heading of CHANGELOG.md: expected 1.2.3, found Unreleased"]


def test_files_of_another_release_in_dist_are_named(root: Path) -> None:
    (root / "dist" / "crossborder-1.2.2.tar.gz").touch()
    (fault,) = find_faults(f"v{VERSION}", root)
    assert "crossborder-1.2.2.tar.gz" in fault
