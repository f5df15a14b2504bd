"""The benchmark of games runs as its page says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import PATIENCE, ROOT


@pytest.mark.slow
def test_a_game_gets_its_actions_from_a_shell_that_knows_no_client() -> None:
    words = [sys.executable, "-m", "benchmarks.games", "--games", "1", "--seconds", "2"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=3 * PATIENCE, check=True)
    assert "1 games at 60 Hz, 60 actions" in done.stdout
