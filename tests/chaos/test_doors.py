from __future__ import annotations

from tests.chaos.doors import KINDS, fuzz_doors

MAX_ALLOCATED = 8 << 20
"""For a message of at most 66 KB, whose values are objects of Python until they are numbers of an observation."""


def test_mutilated_messages_are_answered_or_refused_by_name_at_each_door_and_cost_little_memory() -> None:
    found = fuzz_doors(150, seed=1)
    for kind in KINDS:
        assert found[kind]["most_allocated_bytes"] < MAX_ALLOCATED
        assert {"taken", "bad_message", "session_lost"} <= found[kind]["outcomes"].keys()
    assert {"101", "400", "opened", "error", "hung up"} <= found["HTTP"]["outcomes"].keys()
