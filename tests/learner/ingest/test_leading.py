from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from learner.ingest.leading import SETTLE_SECONDS, Leading, choose
from learner.shared.actor_table import N_ROWS
from learner.shared.rank_table import FILE, RankTable
from tests.clocks import Clock

ADDRESSES = ["a:1", "b:1", "c:1", "d:1"]


class Ranks:
    """Ranks that exchange their numbers of actors once a second, on a clock that the test turns."""

    def __init__(self, directory: Path, n_ranks: int) -> None:
        self.clock, self.actors = Clock(), [0] * n_ranks
        self._tables, self._leading = [], []
        for rank in range(n_ranks):
            shared = directory / str(rank)
            shared.mkdir()
            self._tables.append(RankTable.create(shared, rank, ADDRESSES[:n_ranks]))
            self._leading.append(Leading(shared, rank, n_ranks, self.clock))

    def join(self, rank: int) -> None:
        address = self._leading[rank].choose()
        self._leading[rank].note(address)
        self.actors[rank if address is None else ADDRESSES.index(address)] += 1

    def exchange(self) -> None:
        self.clock.now += 1.0
        for table in self._tables:
            table.actors[:] = self.actors


@pytest.mark.parametrize(
    ("actors", "own", "chosen"),
    [([0, 0], 0, 0), ([1, 0], 0, 1), ([1, 1], 1, 1), ([0, 9], 0, 0), ([2, 1, 1, 5], 3, 1), ([1, 1, 5, 1], 2, 3)],
)
def test_a_new_actor_joins_the_rank_with_the_fewest_actors_and_stays_where_none_has_fewer(
    actors: Sequence[float], own: int, chosen: int
) -> None:
    assert choose(actors, own) == chosen


@pytest.mark.parametrize("n_ranks", [2, 3, 4])
def test_a_burst_that_comes_to_one_rank_between_two_exchanges_ends_evenly(tmp_path: Path, n_ranks: int) -> None:
    ranks = Ranks(tmp_path, n_ranks)
    for _ in range(100):
        ranks.join(0)
    assert max(ranks.actors) - min(ranks.actors) <= 1


def test_a_burst_that_comes_to_all_ranks_at_once_ends_evenly(tmp_path: Path) -> None:
    ranks, choices = Ranks(tmp_path, 4), random.Random(0)
    for _ in range(100):
        ranks.join(choices.randrange(4))
    assert sum(ranks.actors) == 100
    assert max(ranks.actors) - min(ranks.actors) <= 4, "each rank spreads what comes to it, to one actor"


def test_a_burst_over_several_exchanges_ends_evenly(tmp_path: Path) -> None:
    ranks, choices = Ranks(tmp_path, 4), random.Random(0)
    for _ in range(10):
        for _ in range(10):
            ranks.join(choices.randrange(2))
        ranks.exchange()
    assert max(ranks.actors) - min(ranks.actors) <= 4


def test_a_rank_that_has_lost_its_actors_gets_the_new_ones(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 4)
    ranks.actors = [20, 20, 0, 20]
    ranks.exchange()
    for i in range(20):
        ranks.join(i % 4)
        ranks.exchange()
    assert ranks.actors == [20, 20, 20, 20]


def test_an_actor_that_was_led_is_forgotten_once_the_exchanges_count_it(tmp_path: Path) -> None:
    table = RankTable.create(tmp_path, 0, ADDRESSES[:2])
    leading = Leading(tmp_path, 0, 2, clock := Clock())
    table.actors[:] = [1, 0]
    assert leading.choose() == "b:1"
    leading.note("b:1")
    assert leading.choose() is None
    assert leading.led == 1
    clock.now += SETTLE_SECONDS + 0.1
    assert leading.choose() == "b:1", "the actor has not come there"


def test_actors_that_stay_since_they_name_their_ids_are_not_remembered_without_end(tmp_path: Path) -> None:
    RankTable.create(tmp_path, 0, ADDRESSES[:2])
    leading = Leading(tmp_path, 0, 2, Clock())
    leading.choose()
    for _ in range(2 * N_ROWS):
        leading.note(None)
    assert len(leading._recent) == N_ROWS


def test_one_rank_and_ranks_that_do_not_listen_yet_lead_nobody(tmp_path: Path) -> None:
    assert Leading(tmp_path, 0, 2).choose() is None
    assert Leading(tmp_path, 1, 2).first_rank() is None
    RankTable.create(tmp_path, 0, ADDRESSES[:2]).actors[:] = [1, 0]
    assert Leading(tmp_path, 0, 1).choose() is None
    assert Leading(tmp_path, 0, 3).choose() is None, "the table is that of an earlier life with two ranks"


def test_addresses_that_have_changed_are_read_again(tmp_path: Path) -> None:
    leading = Leading(tmp_path, 0, 2)
    for address in ("b:1", "b:2"):
        RankTable.create(tmp_path, 0, ["a:1", address]).actors[:] = [1, 0]
        assert leading.choose() == address
    (tmp_path / FILE).unlink()
    assert leading.choose() is None
