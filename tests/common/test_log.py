from __future__ import annotations

import logging
import re
import subprocess
import sys

import pytest

from common.log import Seldom, relog
from tests.conftest import ROOT


def written(setup: str, call: str = "warning('look out')") -> str:
    """What a process of its own writes to stderr."""
    logger = "logging.getLogger('deep.inside')"
    lines = ("import logging", "from common.log import setup_logging", setup, f"{logger}.{call}")
    code = "\n".join(lines)
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stderr


def match(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


@pytest.fixture(autouse=True)
def _hear_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "worker-3")


def test_people_read_time_level_and_name() -> None:
    assert match(r"\d\d:\d\d:\d\d WARNING deep\.inside: look out\n", written("setup_logging()"))


def test_a_child_leaves_the_time_to_its_parent() -> None:
    assert written("setup_logging(child=True)") == "WARNING deep.inside: look out\n"


def test_a_level_that_is_not_wanted_is_not_written() -> None:
    assert written("setup_logging('ERROR', child=True)") == ""
    assert written("setup_logging('DEBUG', child=True)", "debug('d')") == "DEBUG deep.inside: d\n"


def test_a_terminal_shares_its_screen_with_the_live_display() -> None:
    console = "from rich.console import Console; c = Console(stderr=True, width=100)"
    assert match(
        r"\d\d:\d\d:\d\d WARNING\s+deep\.inside: look out\s*\n", written(f"{console}; setup_logging(console=c)")
    )


@pytest.mark.parametrize(
    ("line", "last", "level", "message"),
    [
        ("WARNING a.b: text", logging.INFO, logging.WARNING, "a.b: text"),
        ("DEBUG a.b: 100 %s", logging.INFO, logging.DEBUG, "a.b: 100 %s"),
        ("  File 'x.py', line 3", logging.ERROR, logging.ERROR, "  File 'x.py', line 3"),
        ("warnings are lower case", logging.INFO, logging.INFO, "warnings are lower case"),
        ("", logging.INFO, logging.INFO, ""),
    ],
)
def test_a_line_of_a_child_keeps_its_level_or_goes_on_with_the_last(
    caplog: pytest.LogCaptureFixture, line: str, last: int, level: int, message: str
) -> None:
    assert relog("worker-3", line, last) == level
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [("worker-3", level, message)]


def test_something_frequent_is_due_at_most_once_in_a_while_and_the_rest_is_counted() -> None:
    now = 0.0
    seldom = Seldom(10.0, clock=lambda: now)
    assert [seldom.due() for _ in range(4)] == [0, None, None, None]
    now = 9.9
    assert seldom.due() is None
    now = 10.0
    assert [seldom.due(), seldom.due()] == [4, None]
