"""Replays with values that the rules of this run refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.data import Array, Column, Items, Schema
from common.domain import Domain
from common.errors import BadValue
from learner.replay import screening
from learner.replay.memory import ReplayMemory
from learner.replay.quarantine import Quarantine, read_records
from learner.replay.screening import report_suspects, screen
from learner.replay.value_rules import ValueRules
from learner.replay.writer import ReplayWriter

SCHEMA = Schema(
    (
        Column("obs", "<f4", (2,), domain=Domain.between(-1, 1, "<f4")),
        Column("action", "<i8", domain=Domain.between(0, 1, "<i8")),
        Column("done", "|b1"),
    )
)


def nobody(_: int) -> None:
    return None


def actor(incarnation: int) -> tuple[int, str]:
    return incarnation - 10, "host"


def filled(directory: Path, rows: int) -> ReplayMemory:
    """Batches of ten good rows by actor processes 10 and 11 in turn; of 50 slots."""
    memory = ReplayMemory(directory / "replay", SCHEMA, 50, create=True)
    writer = ReplayWriter(memory)
    for batch in range(rows // 10):
        items: Items = {c.name: np.zeros((10, *c.shape), c.dtype) for c in SCHEMA.columns}
        writer.append(items, 10, incarnation=10 + batch % 2, seq=batch // 2 + 1)
    return memory


def rules() -> ValueRules:
    return ValueRules(SCHEMA, {})


def test_a_good_replay_stays_as_it_is(tmp_path: Path) -> None:
    memory = filled(tmp_path, 70)
    memory.columns["obs"][:] = 5.0  # Observations of floats are counted, not refused.
    assert screen(memory, rules(), nobody, Quarantine(tmp_path, "trainer")) == 0
    assert len(memory.excluded) == 0
    assert read_records(tmp_path, "trainer") == []


@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 20])
def test_rows_are_found_in_every_chunk_excluded_and_named_with_their_actors(
    tmp_path: Path, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(screening, "CHUNK_BYTES", chunk_bytes)
    memory = filled(tmp_path, 70)  # Rows 20 to 69 are left; row 50 is in slot 0.
    memory.columns["action"][[22, 13]] = 2, -1
    memory.columns["obs"][35, 1] = np.nan
    memory.columns["done"].view(np.uint8)[49] = 7
    assert screen(memory, rules(), actor, Quarantine(tmp_path, "trainer")) == 4
    assert memory.excluded.tolist() == [22, 35, 49, 63]
    assert "4 rows of the replay" in caplog.text
    assert "the first: column 'action': expected 0 to 1, found 2 in row 22" in caplog.text
    assert "3 from actor 0 on host (000000000000000a), 1 from actor 1" in caplog.text
    records = read_records(tmp_path, "trainer")
    assert [(record.index, record.actor_id, record.found) for record in records] == [
        (22, 0, "2"),
        (35, 1, "nan"),
        (49, 0, "7"),
        (63, 0, "-1"),
    ]
    assert records[0].values == {"obs": [0.0, 0.0], "action": 2, "done": False}


def test_the_log_names_only_some_of_many_bad_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, find = list[Array](), ValueRules.find_first_refused

    def count(rules: ValueRules, column: Column, values: Array) -> BadValue:
        named.append(values)
        return find(rules, column, values)

    monkeypatch.setattr(ValueRules, "find_first_refused", count)
    memory = filled(tmp_path, 50)
    memory.columns["action"][:] = 9
    assert screen(memory, rules(), nobody, Quarantine(tmp_path, "trainer")) == 50
    drawable: Array = ~memory.is_excluded(np.arange(50))
    assert not drawable.any()
    assert len(read_records(tmp_path, "trainer")) == len(named) == screening.N_NAMED


def test_the_rows_that_opt_drew_before_it_raised_are_named_with_their_actors_and_recorded(tmp_path: Path) -> None:
    memory, quarantine = filled(tmp_path, 20), Quarantine(tmp_path, "trainer")
    memory.columns["action"][12] = 1
    assert report_suspects(memory, np.array([12, 3, 12]), actor, quarantine) == (
        "opt had last drawn 2 rows, of 3 to 12: 3, 12; 1 from actor 0 on host (000000000000000a), "
        "1 from actor 1 on host (000000000000000b); replay-inspect shows them in the quarantine"
    )
    records = read_records(tmp_path, "trainer")
    assert [(record.reason, record.index, record.actor_id) for record in records] == [
        ("drawn before opt raised", 3, 0),
        ("drawn before opt raised", 12, 1),
    ]
    assert records[1].values == {"obs": [0.0, 0.0], "action": 1, "done": False}


def test_the_log_names_only_some_of_many_suspects(tmp_path: Path) -> None:
    memory, quarantine = filled(tmp_path, 50), Quarantine(tmp_path, "trainer")
    message = report_suspects(memory, np.arange(50), nobody, quarantine)
    assert "of 0 to 49: 0, 1, " in message
    assert f"{screening.N_SUSPECTS - 1}, …; 30 from actor process 000000000000000a, 20 from" in message
    assert len(read_records(tmp_path, "trainer")) == screening.N_SUSPECTS


def test_a_batch_whose_rows_are_not_known_is_reported_as_such(tmp_path: Path) -> None:
    memory, quarantine = filled(tmp_path, 10), Quarantine(tmp_path, "trainer")
    assert "or a batch that was gathered before the run was resumed" in report_suspects(
        memory, np.empty(0, np.int64), nobody, quarantine
    )
    assert read_records(tmp_path, "trainer") == []
