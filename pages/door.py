"""The pages of the API: what ``import crossborder`` offers, each heading of its list on the page of that title."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from crossborder.door import read_sections

INDEX: Final = Path("docs/api.md")
_PLACE: Final = re.compile(r"(?<=<!-- names -->\n).*(?=<!-- end -->)", re.DOTALL)
_WHOLE: Final = frozenset({"Errors", "Interfaces", "Rows and batches"})
"""The pages that show attributes without a docstring too."""


def find_pages() -> dict[str, Path]:
    """By heading of the list, its page: the one with this title."""
    titles = {path.read_text().partition("\n")[0].removeprefix("# "): path for path in Path("docs").glob("api-*.md")}
    return {heading: titles[heading] for heading in read_sections()}


def fill_page(text: str) -> str:
    """The text of a page with the names under its title between the marks, for mkdocstrings to describe."""
    title = text.partition("\n")[0].removeprefix("# ")
    options = "    options: {show_if_no_docstring: true}\n" if title in _WHOLE else ""
    return _put(text, "".join(f"\n::: crossborder.{name}\n{options}" for name in read_sections()[title]))


def fill_index(text: str) -> str:
    """The text of the first page with a row for each heading between the marks."""
    pages, rows = find_pages(), ["", "| page | names |", "|---|---|"]
    for heading, names in read_sections().items():
        links = ", ".join(f"[`{name}`]({pages[heading].name}#crossborder.{name})" for name in names)
        rows.append(f"| [{heading}]({pages[heading].name}) | {links} |")
    return _put(text, "\n".join([*rows, ""]))


def _put(text: str, names: str) -> str:
    return _PLACE.sub(lambda _: f"{names}\n", text)
