from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import RunDirectoryError
from learner.shared.actor_table import ActorState, actor_of, host_of, map_actor_table


def test_rows_that_ingest_writes_are_read_by_others_who_cannot_change_them(tmp_path: Path) -> None:
    written = map_actor_table(tmp_path, create=True)
    written["host"][2], written["env_steps"][2] = "cpu-ü".encode(), 7
    read = map_actor_table(tmp_path, create=False, writable=False)
    assert (host_of(read[2]), read["env_steps"][2]) == ("cpu-ü", 7)
    with pytest.raises(ValueError, match="read-only"):
        read["env_steps"][2] = 8


def test_a_table_with_a_flipped_bit_is_named(tmp_path: Path) -> None:
    map_actor_table(tmp_path, create=True)["state"][3] = ActorState.LOST + 2**40
    message = r"actors: expected the states of actors, \[0, .*6\], found 1099511627780; remove the file: the next start"
    with pytest.raises(RunDirectoryError, match=message):
        map_actor_table(tmp_path, create=False, writable=False)


def test_an_actor_is_found_by_its_incarnation_while_the_table_has_it(tmp_path: Path) -> None:
    table = map_actor_table(tmp_path, create=True)
    assert actor_of(table, 0) is None, "an unused row is nobody's"
    table["incarnation"][3], table["actor_id"][3], table["state"][3] = 2**64 - 1, 5, ActorState.LOST
    table["host"][3] = b"cpu-1"
    assert actor_of(table, 2**64 - 1) == (5, "cpu-1")
    assert actor_of(table, 8) is None
