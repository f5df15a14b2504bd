"""Actors of a run with two ranks: real ingest processes, whose trainers neither train nor speak to each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from actor.worker import Actor
from common.config.run_config import RunConfig
from common.errors import CrossborderError
from common.wire.trust import Trust
from learner.ingest.ingest_process import IngestProcess
from learner.loop.server import LearnerServer
from learner.ranks.place import Place
from learner.shared.rank_table import RankTable
from tests.conftest import PATIENCE, counting_config, kill, wait_for

SHORT_PATIENCE = 5.0


class Shard(LearnerServer):
    """A learner whose ingest process takes itself for one of two ranks."""

    def __init__(self, config: RunConfig, rank: int) -> None:
        self._rank = rank
        super().__init__(config)

    def _start_ingest(self) -> IngestProcess:
        alone, self.place = self.place, Place(rank=self._rank, n_ranks=2)
        try:
            return super()._start_ingest()
        finally:
            self.place = alone

    @property
    def acting(self) -> int:
        """Environment steps of its actors."""
        return int(self.actor_table["env_steps"].sum())


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Shard]]:
    """Two ranks; the last test ends one of them."""
    tmp_path = tmp_path_factory.mktemp("ranks")
    with ExitStack() as stack:
        exploration = {"epsilons": [0.5, 0.4, 0.3, 0.2]}
        made = [
            stack.enter_context(
                Shard(
                    counting_config(tmp_path / str(i), seed=i * 1000, exploration=exploration, push={"n_buffer": 5}), i
                )
            )
            for i in range(2)
        ]
        yield made


def introduce(shards: list[Shard]) -> list[RankTable]:
    """Tell all ingest processes where the ranks listen; nobody has actors yet."""
    addresses = [shard.ingest.address for shard in shards]
    return [RankTable.create(shard.run.dir.shared, i, addresses) for i, shard in enumerate(shards)]


class Fleet:
    """Actors in threads of this process."""

    def __init__(self) -> None:
        self._running: list[tuple[Actor, threading.Thread]] = []

    def start(self, addresses: str, patience: float = PATIENCE) -> None:
        def no_end(error: CrossborderError) -> int:
            raise AssertionError(f"the process would end: {error}")

        actor = Actor(addresses, patience, Trust(), no_end)
        thread = threading.Thread(target=actor.run, name="actor")
        thread.start()
        self._running.append((actor, thread))

    def stop(self) -> None:
        for actor, _ in self._running:
            actor.stop()
        for _, thread in self._running:
            thread.join(PATIENCE)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet()
    yield made
    made.stop()


def test_four_actors_that_know_one_rank_are_spread_over_both_and_share_the_list_of_epsilons(
    shards: list[Shard], fleet: Fleet
) -> None:
    introduce(shards)
    for _ in range(4):
        fleet.start(shards[0].ingest.address)
    wait_for(lambda: [shard.control.actors_online for shard in shards] == [2, 2], "both ranks have two actors")
    wait_for(lambda: min(shard.buffer.inserted for shard in shards) > 20, "both ranks store rows")
    fleet.stop()
    for shard in shards:
        assert shard.buffer.inserted == shard.acting, "each row is stored at the rank that its actor has joined"


def test_an_actor_comes_back_to_the_rank_that_it_has_joined(shards: list[Shard], fleet: Fleet) -> None:
    here, other = shards
    joins, stored = here.control.joins, other.buffer.inserted
    for table in introduce(shards):
        table.actors[:] = 1, 0
    fleet.start(here.ingest.address)
    wait_for(lambda: other.buffer.inserted > stored + 20, "the actor was led to the rank without actors")
    kill(other.ingest.pid)
    wait_for(lambda: other.actor_table["reconnects"].sum() == 1, "it has joined again")
    fleet.stop()
    assert other.buffer.inserted == other.acting
    assert here.control.joins == joins


def test_an_actor_whose_rank_stays_away_starts_over_at_another_and_counts_what_it_drops(
    shards: list[Shard], fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    here, other = shards
    for table in introduce(shards):
        table.actors[:] = 1, 0
    before = here.buffer.inserted, other.buffer.inserted
    fleet.start(f"{here.ingest.address},{other.ingest.address}", SHORT_PATIENCE)
    wait_for(lambda: other.buffer.inserted > before[1] + 20, "it acts where it has been led")
    acknowledged = other.actor_table["items"].sum()
    other.ingest.leave()
    wait_for(lambda: here.buffer.inserted > before[0] + 20, "it has started over")
    fleet.stop()
    assert "unacknowledged rows are dropped: the former learner may have stored them" in caplog.text
    assert here.actor_table["dropped_items"].sum() > 0
    assert here.buffer.inserted == here.acting, "no row of the former incarnation came along"
    assert other.buffer.inserted >= acknowledged
