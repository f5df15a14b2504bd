from __future__ import annotations

import numpy as np
import pytest

from common.data import Items
from tests.chaos.audit import CHECKSUM, Audit, audit, checksums
from tests.chaos.kills import kill_at_random
from tests.parts import expected_items


def intact(tag: int, count: int) -> Items:
    items = expected_items(tag, count)
    return {**items, CHECKSUM.name: checksums(items)}


def without(items: Items, *rows: int) -> Items:
    return {name: np.delete(column, rows, axis=0) for name, column in items.items()}


def joined(*parts: Items) -> Items:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_of_whole_and_interleaved_lives_nothing_is_found_wrong() -> None:
    one, other = intact(0, 20), intact(1, 30)
    items = joined(one, {name: column[:10] for name, column in other.items()}, without(other, *range(10)))
    assert audit(items, {0: 20, 1: 25}) == Audit(50, lost=0, doubled=0, disordered=0, torn=0)


@pytest.mark.parametrize("row", [0, 7, 19])
def test_a_lost_item_is_noticed_wherever_it_was(row: int) -> None:
    assert audit(without(intact(0, 20), row), {0: 20}).lost == 1


def test_an_actor_of_whom_nothing_is_left_is_noticed() -> None:
    assert audit(intact(0, 20), {0: 20, 1: 5}).lost == 5


def test_a_doubled_item_and_one_in_a_wrong_place_are_noticed() -> None:
    twice = audit(joined(intact(0, 20), {name: column[19:] for name, column in intact(0, 20).items()}), {0: 20})
    assert (twice.doubled, twice.lost) == (1, 0)
    order = [0, 2, 1, *range(3, 20)]
    assert audit({name: column[order] for name, column in intact(0, 20).items()}, {0: 20}).disordered == 1


@pytest.mark.parametrize("column", [*expected_items(0, 1), CHECKSUM.name])
def test_one_torn_byte_of_any_column_is_noticed(column: str) -> None:
    items = intact(0, 20)
    items[column].reshape(20, -1).view(np.uint8)[11, 0] ^= 1
    assert audit(items, {}).torn == 1


def test_a_row_of_two_halves_is_noticed() -> None:
    items = intact(0, 20)
    items["next_obs"][:] = intact(1, 20)["next_obs"]
    assert audit(items, {}).torn == 20


def test_nothing_acknowledged_is_lost_or_doubled_or_torn_whoever_is_killed() -> None:
    result = kill_at_random(kills=4, seed=22)
    assert result["items"] > 0
    assert result["recovery_seconds"].keys() == {"actor", "ingest", "trainer", "host"}, "the seed kills each of them"
