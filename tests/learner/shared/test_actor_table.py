from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.errors import RunDirectoryError
from learner.shared.actor_table import (
    N_ROWS,
    ROW_OF_0_1,
    ActorState,
    actor_of,
    host_of,
    map_actor_table,
    upgrade_actor_table,
)


def test_the_table_of_a_run_that_release_0_1_began_keeps_what_it_holds(tmp_path: Path) -> None:
    table = np.zeros(N_ROWS, ROW_OF_0_1)
    table["host"][3], table["items"][3], table["incarnation"][3] = b"cpu-1", 70, 2**63 + 1
    table.tofile(tmp_path / "actors")
    with pytest.raises(RunDirectoryError, match="bytes, found"):
        map_actor_table(tmp_path, create=False)
    for _ in range(2):
        upgrade_actor_table(tmp_path)
        row = map_actor_table(tmp_path, create=False)[3]
        assert (row["host"], row["items"], row["incarnation"], row["name"]) == (b"cpu-1", 70, 2**63 + 1, b"")
    assert (tmp_path / "actors").stat().st_mode & 0o777 == 0o600


def test_a_row_of_release_0_1_has_the_size_that_it_had_then() -> None:
    assert ROW_OF_0_1.itemsize == 216


def test_a_table_of_another_size_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "actors").write_bytes(b"x" * 8)
    upgrade_actor_table(tmp_path)
    assert (tmp_path / "actors").read_bytes() == b"x" * 8


def test_a_run_without_a_table_needs_none(tmp_path: Path) -> None:
    upgrade_actor_table(tmp_path)
    assert not (tmp_path / "actors").exists()


def test_rows_that_ingest_writes_are_read_by_others_who_cannot_change_them(tmp_path: Path) -> None:
    written = map_actor_table(tmp_path, create=True)
    written["host"][2], written["env_steps"][2] = "cpu-ü".encode(), 7
    read = map_actor_table(tmp_path, create=False, writable=False)
    assert (host_of(read[2]), read["env_steps"][2]) == ("cpu-ü", 7)
    with pytest.raises(ValueError, match="read-only"):
        read["env_steps"][2] = 8


def test_an_actor_is_found_by_its_incarnation_while_the_table_has_it(tmp_path: Path) -> None:
    table = map_actor_table(tmp_path, create=True)
    assert actor_of(table, 0) is None, "an unused row is nobody's"
    table["incarnation"][3], table["actor_id"][3], table["state"][3] = 2**64 - 1, 5, ActorState.LOST
    table["host"][3] = b"cpu-1"
    assert actor_of(table, 2**64 - 1) == (5, "cpu-1")
    assert actor_of(table, 8) is None
