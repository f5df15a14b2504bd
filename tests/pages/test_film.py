"""Films of real commands in a real pseudo-terminal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pages.film import LAST_SECONDS, draw, record
from tests.conftest import ROOT

SVG = "{http://www.w3.org/2000/svg}"
SCRIPT = """
import sys, time
print("\x1b[32mone & two\x1b[0m", flush=True)
time.sleep(1)
print("three", sys.stdout.isatty())
"""


def text_at(film: str, percent: float) -> str:
    """The text that is visible after this share of the film."""
    rules = re.findall(r"@keyframes (f\d+)\{.*?([\d.]+)%\{visibility:visible\}([\d.]+)%\{visibility:hidden\}\}", film)
    seen = {name for name, begin, end in rules if float(begin) <= percent < float(end)}
    groups = ElementTree.fromstring(film).iter(f"{SVG}g")  # noqa: S314 - we have drawn it ourselves
    return "\n".join("".join(group.itertext()) for group in groups if group.attrib["class"].split()[1] in seen)


def test_each_screen_is_shown_from_its_moment_on_with_its_colours(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    film = draw(record([sys.executable, str(script)]))
    assert "three" not in text_at(film, 0)
    assert "one & two" in text_at(film, 99)
    assert "three True" in text_at(film, 99), "the command runs in a terminal"
    assert 'fill="#7ee787"' in film, "green"
    length = float(film.partition("animation:f0 ")[2].partition("s ")[0])
    assert length >= 1 + LAST_SECONDS


def test_a_command_that_fails_is_no_film() -> None:
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        record([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_film_of_the_demonstration_ends_with_its_result() -> None:
    film = (ROOT / "docs" / "images" / "demo.svg").read_text()
    assert "make demo" in text_at(film, 0)
    assert "the target score was reached" in text_at(film, 99)
