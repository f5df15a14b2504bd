from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.shutdown import STATES, end_from

OF_CHILDREN = {"ingest restart", "actor frozen"}
"""The states that a signal to a child of the learner makes."""


@pytest.mark.parametrize(
    "state", [pytest.param(name, marks=[pytest.mark.own_children] * (name in OF_CHILDREN)) for name in STATES]
)
def test_a_run_that_is_told_to_end_leaves_no_process_and_everything_on_disk(state: str, tmp_path: Path) -> None:
    end_from(state, tmp_path)
