from __future__ import annotations

import re

from tests.chaos.tables import PAGE, TABLES, filled


def test_the_page_shows_what_the_exercises_found() -> None:
    page = PAGE.read_text()
    assert set(re.findall(r"<!-- (\w+) -->", page)) - {"end"} == TABLES.keys()
    assert page == filled(page)
