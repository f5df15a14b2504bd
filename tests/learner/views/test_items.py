"""Self-contained items are drawn as they are."""

from __future__ import annotations

from pathlib import Path

from common.data import PRIORITY
from learner.replay.uniform import UniformReplay
from learner.views.items import SelfContained
from tests.learner.replay.memories import SCHEMA, make, rows


def test_every_item_can_be_drawn_with_all_its_columns(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 10), 10, incarnation=1, seq=1)
    batch = UniformReplay(memory, SelfContained(SCHEMA), seed=0).batch(200)
    assert list(batch) == ["n", "pair"]
    assert set(batch["n"].tolist()) == set(range(10))
    assert (batch["pair"] == batch["n"][:, None]).all()


def test_a_first_priority_is_no_column_of_a_batch() -> None:
    schema = SCHEMA.plus(PRIORITY)
    assert PRIORITY.name not in SelfContained(schema)._names
