"""Pages and examples import ``crossborder`` alone; benchmarks and end-to-end tests use public names that exist."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from common.plugins.shipped import OWN_PACKAGES
from tests.conftest import ROOT

USERS = sorted([*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests" / "e2e").rglob("*.py")])
PAGES_AND_EXAMPLES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "examples").rglob("*.py"),
    ]
)
BEHIND_THE_DOOR = "|".join(package for package in OWN_PACKAGES if package != "crossborder")
OWN_OBJECTS = {"server", "host", "learner", "ingest", "run", "trainer", "publisher", "buffer", "local_actors"}
"""Names that stand for objects of ours wherever they are used."""


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    """Modules of ours and the names that are imported from each."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OWN_PACKAGES:
            for alias in node.names:
                yield node.module, alias.name


def private_uses_in(path: Path) -> Iterator[str]:
    """Private attributes of our objects that a file reaches for."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if name in OWN_OBJECTS:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def test_every_name_that_is_imported_is_there() -> None:
    for module, name in {each for path in USERS for each in imports_of(path)}:
        found = importlib.import_module(module)
        assert hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}"), f"{module} has no {name}"


def test_nobody_reaches_for_what_is_private_in_the_learner() -> None:
    assert [use for path in USERS for use in private_uses_in(path)] == []


def test_pages_and_examples_import_crossborder_and_none_of_the_rooms_behind_it() -> None:
    """Commands that run Python count too. What is missing at the door belongs into ``crossborder/__init__.pyi``."""
    rooms = rf"\bfrom (?:(?:{BEHIND_THE_DOOR})\b|crossborder\.)\S* import .*|^\s*import (?:{BEHIND_THE_DOOR})\b.*"
    found = {path.name: re.findall(rooms, path.read_text(), re.MULTILINE) for path in PAGES_AND_EXAMPLES}
    assert {name: imports for name, imports in found.items() if imports} == {}
