"""A client is one file that one can read before copying it, and the game around it is short."""

from __future__ import annotations

import pytest

from tests.clients.driven import CLIENTS

MOST_LINES = {
    "python/crossborder_client.py": 305,
    "javascript/crossborder.js": 300,
    "csharp/Crossborder.cs": 300,
    "godot/crossborder.gd": 300,
    "cpp/crossborder.hpp": 340,  # C++ has neither a WebSocket nor TLS of its own.
    "python/example.py": 60,
    "javascript/catch.js": 60,
    "javascript/connect_four.html": 90,
    "csharp/Example.cs": 65,
    "godot/catch.gd": 65,
    "cpp/examples/catch.cpp": 65,
}


@pytest.mark.parametrize(("file", "most"), MOST_LINES.items())
def test_a_client_is_one_short_file_and_so_is_its_game(file: str, most: int) -> None:
    assert len((CLIENTS / file).read_text().splitlines()) <= most
