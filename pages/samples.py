"""Files that pages show as they are, so that they can be read without the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

LANGUAGES: Final = {".py": "python", ".mjs": "javascript"}
_PLACE: Final = re.compile(r"(?<=<!-- file )(\S+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def find_samples() -> list[Path]:
    """The pages that show files."""
    return [path for path in sorted(Path("docs").glob("*.md")) if _PLACE.search(path.read_text())]


def fill_in(text: str) -> str:
    """The page's text with each file between its marks."""
    return _PLACE.sub(_show, text)


def _show(place: re.Match[str]) -> str:
    path = Path(place[1])
    return f"{place[1]}{place[2]}\n```{LANGUAGES[path.suffix]}\n{path.read_text().rstrip()}\n```\n\n"
