"""The settings of a sweep, between two marks in ``docs/sweeps-and-plots.md``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from learner.sweeps.sweep_config import SweepConfig
from pages.configuration import rows_of

PATH: Final = Path("docs/sweeps-and-plots.md")
_PLACE: Final = re.compile(r"(?<=<!-- settings -->\n).*(?=<!-- end -->)", re.DOTALL)


def fill_in(text: str) -> str:
    """The page's text with a row for each setting between the marks."""
    table = ["| key | type | default | |", "|---|---|---|---|", *rows_of(SweepConfig, "")]
    return _PLACE.sub(lambda _: "\n".join(["", *table, "", ""]), text)
