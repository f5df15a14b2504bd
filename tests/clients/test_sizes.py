"""A client is one file that one can read before copying it, and the game around it is short."""

from __future__ import annotations

import re

import pytest

from crossborder.serving.serving_config import ServingConfig
from tests.clients.driven import CLIENTS

CLIENT, GAME = 300, 60
MOST_LINES = {
    "python/crossborder_client.py": CLIENT,
    "javascript/crossborder.js": CLIENT,
    "csharp/Crossborder.cs": CLIENT,
    "godot/crossborder.gd": CLIENT,
    "cpp/crossborder.hpp": 333,  # C++ has neither a WebSocket nor TLS of its own.
    "python/example.py": GAME,
    "javascript/catch.js": GAME,
    "javascript/connect_four.html": 90,  # With the rules, and a board that a person plays on.
    "csharp/Example.cs": GAME,
    "godot/catch.gd": GAME,
    "cpp/examples/catch.cpp": GAME,
}


@pytest.mark.parametrize(("file", "most"), MOST_LINES.items())
def test_a_client_is_one_short_file_and_so_is_its_game(file: str, most: int) -> None:
    assert len((CLIENTS / file).read_text().splitlines()) <= most


@pytest.mark.parametrize("file", [file for file, most in MOST_LINES.items() if most >= CLIENT])
def test_a_client_waits_for_longer_than_a_service_keeps_the_room_of_one_that_was_killed(file: str) -> None:
    found = re.findall(r"patience(?:: float)?\"?(?: =|,) (\d+)", (CLIENTS / file).read_text())
    assert [int(each) for each in found] == [120]
    assert int(found[0]) > ServingConfig().resume_seconds
