from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.errors import RunDirectoryError
from learner.shared.actor_table import _ROW_OF_0_1, N_ROWS, map_actor_table, upgrade_actor_table


def test_the_table_of_a_run_that_release_0_1_began_keeps_what_it_holds(tmp_path: Path) -> None:
    table = np.zeros(N_ROWS, _ROW_OF_0_1)
    table["host"][3], table["items"][3], table["incarnation"][3] = b"cpu-1", 70, 2**63 + 1
    table.tofile(tmp_path / "actors")
    with pytest.raises(RunDirectoryError, match="bytes, found"):
        map_actor_table(tmp_path, create=False)
    for _ in range(2):
        upgrade_actor_table(tmp_path)
        row = map_actor_table(tmp_path, create=False)[3]
        assert (row["host"], row["items"], row["incarnation"], row["name"]) == (b"cpu-1", 70, 2**63 + 1, b"")
    assert (tmp_path / "actors").stat().st_mode & 0o777 == 0o600


def test_a_table_of_another_size_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "actors").write_bytes(b"x" * 8)
    upgrade_actor_table(tmp_path)
    assert (tmp_path / "actors").read_bytes() == b"x" * 8
