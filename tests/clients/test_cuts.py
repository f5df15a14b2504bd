"""The long exercise of the clients, in short."""

from __future__ import annotations

import pytest

from tests.clients.__main__ import exercise


@pytest.mark.slow
def test_a_client_that_is_cut_off_and_whose_service_is_killed_plays_each_step_once() -> None:
    assert exercise("python", cuts=4, kills=1, seed=1) == {
        "cuts": 4, "kills": 1, "steps": 20, "episodes": 5, "lost": 0, "doubled": 0,
    }  # fmt: skip
