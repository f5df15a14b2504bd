from __future__ import annotations

import numpy as np
import pytest

from tests.chaos.serving import CUT, DOORS, KILLED, misplaced, serve_through, within_sessions

pytestmark = pytest.mark.own_children


def test_only_the_first_row_of_a_session_may_be_linked_to_the_last_one_of_another_and_no_row_changes_its_lane() -> None:
    tags = np.array([1, 1, 2, 2, 3], np.float32)
    final = np.array([False, True, False, False, False])
    rows = {"obs": tags[:, None], "lane": np.array([0, 0, 0, 0, 0]), "final": final}
    links = np.array([0, 1, 1, 1, 1], np.uint32)
    assert within_sessions(rows, links).tolist() == [0, 1, 0, 1, 1], "row 4 goes on from an episode that has no end"
    assert misplaced(rows) == 0
    rows["lane"][3] = 1
    assert misplaced(rows) == 1


def test_rows_of_clients_are_stored_once_in_their_lanes_and_no_session_hangs_whatever_breaks() -> None:
    result = serve_through(kills=1, cuts=2, seed=1)
    assert result["rows"] > 0
    assert result["clients"] == len(DOORS) + 1
    assert result["faults"].keys() == {*(f"kill -9 of {who}" for who in KILLED), *(f"cut of {line}" for line in CUT)}
