"""Tables of settings between two marks in pages that are otherwise written by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from common.settings import Settings
from crossborder.launching.hosts_config import LaunchConfig
from crossborder.serving.serving_config import ServingConfig
from crossborder.sweeps.suite_config import SuiteConfig
from crossborder.sweeps.sweep_config import SweepConfig
from pages.configuration import rows_of

TABLES: Final[dict[Path, type[Settings]]] = {
    Path("docs/acting-service.md"): ServingConfig,
    Path("docs/benchmarks.md"): SuiteConfig,
    Path("docs/clusters.md"): LaunchConfig,
    Path("docs/sweeps-and-plots.md"): SweepConfig,
}
"""The pages with such a table, and the settings that each shows."""
_PLACE: Final = re.compile(r"(?<=<!-- settings -->\n).*(?=<!-- end -->)", re.DOTALL)


def fill_in(text: str, model: type[Settings]) -> str:
    """The page's text with a row for each setting between the marks."""
    table = ["| key | type | default | |", "|---|---|---|---|", *rows_of(model, "")]
    return _PLACE.sub(lambda _: "\n".join(["", *table, "", ""]), text)
