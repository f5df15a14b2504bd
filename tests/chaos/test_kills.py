from __future__ import annotations

import numpy as np
import pytest

from common.data import Items
from tests.chaos.audit import CHECKSUM, Audit, audit, checksums
from tests.chaos.kills import kill_at_random
from tests.parts import expected_rows

pytestmark = pytest.mark.own_children


def intact(tag: int, steps: int) -> Items:
    rows = expected_rows(tag, steps)
    return {**rows, CHECKSUM.name: checksums(rows)}


def without(rows: Items, *positions: int) -> Items:
    return {name: np.delete(column, positions, axis=0) for name, column in rows.items()}


def joined(*parts: Items) -> Items:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def head(rows: Items, count: int) -> Items:
    return {name: column[:count] for name, column in rows.items()}


N_ROWS = len(intact(0, 20)["obs"])


def test_of_whole_and_interleaved_lives_nothing_is_found_wrong() -> None:
    one, other = intact(0, 20), intact(1, 30)
    rows = joined(head(other, 10), one, without(other, *range(10)))
    previous = np.ones(len(rows["obs"]), np.uint32)
    previous[[0, 10]] = 0
    previous[10 + N_ROWS] = N_ROWS + 1
    found = audit(rows, {0: 20, 1: 25}, previous)
    assert found == Audit(len(rows["obs"]), lost=0, doubled=0, disordered=0, torn=0, unlinked=0, mislinked=0)
    assert found.is_clean


@pytest.mark.parametrize("row", [0, 7, 19])
def test_a_lost_row_is_noticed_wherever_it_was(row: int) -> None:
    assert audit(without(intact(0, 20), row), {0: N_ROWS}).lost == 1


def test_an_actor_of_whom_nothing_is_left_is_noticed() -> None:
    assert audit(intact(0, 20), {0: 20, 1: 5}).lost == 5


def test_a_doubled_row_and_one_in_a_wrong_place_are_noticed() -> None:
    twice = audit(joined(intact(0, 20), {name: column[19:20] for name, column in intact(0, 20).items()}), {0: 20})
    assert (twice.doubled, twice.lost) == (1, 0)
    order = [0, 2, 1, *range(3, 20)]
    assert audit({name: column[order] for name, column in intact(0, 20).items()}, {0: 20}).disordered == 1


@pytest.mark.parametrize("column", [*expected_rows(0, 1), CHECKSUM.name])
def test_one_torn_byte_of_any_column_is_noticed(column: str) -> None:
    rows = intact(0, 20)
    rows[column].reshape(N_ROWS, -1).view(np.uint8)[11, 0] ^= 1
    assert audit(rows, {}).torn == 1


def test_a_row_of_two_halves_is_noticed() -> None:
    rows = intact(0, 20)
    rows["obs"][:] = intact(1, 20)["obs"]
    assert audit(rows, {}).torn == N_ROWS


def test_a_missing_link_and_one_to_another_row_are_noticed() -> None:
    previous = np.ones(N_ROWS, np.uint32)
    previous[[0, 3, 5]] = 0, 0, 2
    found = audit(intact(0, 20), {}, previous)
    assert (found.unlinked, found.mislinked, found.is_clean) == (1, 1, False)
    lost = audit(without(intact(0, 20), 4), {}, np.ones(N_ROWS - 1, np.uint32))
    assert (lost.unlinked, lost.mislinked) == (0, 1), "the row before is lost"


def test_nothing_acknowledged_is_lost_or_doubled_or_torn_whoever_is_killed() -> None:
    result = kill_at_random(kills=4, seed=22)
    assert result["rows"] > 0
    assert result["recovery_seconds"].keys() == {"actor", "ingest", "trainer", "host"}, "the seed kills each of them"
