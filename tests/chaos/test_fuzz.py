from __future__ import annotations

from tests.chaos.fuzz import fuzz

MAX_ALLOCATED = 1 << 20
"""Beyond a message's own bytes, of which there are far fewer here."""


def test_mutilated_messages_are_taken_or_refused_by_name_and_cost_no_memory() -> None:
    result = fuzz(3_000, seed=5)
    assert result["most_allocated_bytes"] < MAX_ALLOCATED
    assert result["outcomes"].keys() == {
        *("taken", "no message", "DecodeError", "RefusedError", "NotJoinedError"),
        *("SchemaMismatchError", "SharedIncarnationError", "ProtocolMismatchError"),
    }
    assert result["batches_refused_for"].keys() == {
        "bounds",
        "payload",
        "report",
        "rows",
        "schema",
        "sequence",
        "values",
    }


def test_a_seed_names_its_messages() -> None:
    one, other = fuzz(100, seed=1), fuzz(100, seed=1)
    assert one["outcomes"] == other["outcomes"]
    assert one["batches_refused_for"] == other["batches_refused_for"]
