from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.shutdown import STATES, end_from

pytestmark = pytest.mark.own_children


@pytest.mark.parametrize("state", STATES)
def test_a_run_that_is_told_to_end_leaves_no_process_and_everything_on_disk(state: str, tmp_path: Path) -> None:
    end_from(state, tmp_path)
