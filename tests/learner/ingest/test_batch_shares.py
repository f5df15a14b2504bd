from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.ingest.batch_shares import BatchShares

FAST, SLOW, THIRD = 0, 1, 2
LOST_SECONDS = 30.0


class Queue:
    """Shares of batches of ``batch`` steps, and a trainer that draws a batch as soon as it is asked to look."""

    def __init__(self, batch: int = 100) -> None:
        self.batch, self.now, self.drawn = batch, 0.0, 0
        self.away = set[int]()
        self.totals = dict[int, int]()
        self.shares = BatchShares(lambda actor: actor not in self.away, LOST_SECONDS, lambda: self.now)

    def store(self, actor: int, steps: int) -> None:
        self.totals[actor] = self.totals.get(actor, 0) + steps
        self.shares.note_share(actor, steps, self.totals[actor], self.batch, self.drawn)

    def look(self, *, needs: int | None = None) -> bool:
        """Let the trainer look at all steps, and draw if ``needs`` of them wait, by default a batch; whether it did."""
        can_draw = sum(self.totals.values()) - self.drawn >= (self.batch if needs is None else needs)
        self.drawn += self.batch if can_draw else 0
        self.shares.settle_shares(self.batch, self.drawn, lacks_steps=not can_draw)
        return can_draw

    def held(self) -> list[int]:
        return [actor for actor in self.totals if self.shares.holds(actor)]


def begun(*actors: int, batch: int = 100) -> Queue:
    """A queue to which these actors have given something, less than their shares."""
    queue = Queue(batch)
    for actor in actors:
        queue.store(actor, 10)
    return queue


def test_an_actor_that_has_given_its_share_waits_until_the_batch_is_drawn() -> None:
    queue = begun(FAST, SLOW)
    queue.store(FAST, 30)
    assert queue.held() == []
    queue.store(FAST, 10)
    assert queue.held() == [FAST]
    assert not queue.look()
    assert queue.held() == [FAST], "the trainer waits for the slow actor"
    queue.store(SLOW, 40)
    assert queue.held() == [FAST, SLOW]
    queue.shares.settle_shares(queue.batch, 0, lacks_steps=False)
    assert queue.held() == [FAST, SLOW], "the batch is whole, and the trainer learns"
    assert queue.look()
    assert queue.held() == []


def test_each_actor_that_is_let_go_is_told_once() -> None:
    queue = begun(FAST, SLOW)
    queue.store(FAST, 40)
    assert queue.shares.take_freed() == set()
    queue.store(SLOW, 40)
    assert queue.shares.settle(0.0) == 1, "it asks for the next draw"
    queue.look()
    assert queue.shares.take_freed() == {FAST, SLOW}
    assert queue.shares.take_freed() == set()
    assert queue.shares.settle(0.0) == 0


def test_steps_beyond_a_share_count_for_the_next_one() -> None:
    queue = begun(FAST, SLOW)
    queue.store(FAST, 55)
    queue.store(SLOW, 40)
    assert queue.look()
    queue.store(FAST, 34)
    assert queue.held() == [], "it has stored 99 steps"
    queue.store(FAST, 1)
    assert queue.held() == [FAST]


def test_an_actor_alone_never_waits_for_others() -> None:
    queue = begun(FAST)
    queue.store(FAST, 95)
    assert queue.held() == [FAST], "it waits for the trainer, which may draw"
    assert not queue.look(needs=110), "its rollouts are not whole yet"
    assert queue.held() == []


def test_all_owe_another_share_if_all_have_given_theirs_and_the_batch_is_not_whole() -> None:
    """The lanes of an actor may have no room for whole rollouts in its share."""
    queue = begun(FAST, SLOW)
    queue.store(FAST, 40)
    queue.store(SLOW, 40)
    assert not queue.look(needs=120)
    assert queue.held() == []
    queue.store(FAST, 50)
    assert not queue.look(needs=200)
    assert queue.held() == [FAST]
    queue.store(SLOW, 50)
    assert not queue.look(needs=1000)
    assert queue.held() == []


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_an_actor_that_cannot_give_its_share_keeps_nobody_waiting(how: str) -> None:
    queue = begun(FAST, SLOW, batch=100)
    queue.store(FAST, 40)
    assert not queue.look()
    queue.now += LOST_SECONDS - 1
    assert not queue.look()
    assert queue.held() == [FAST]
    if how == "killed":
        queue.away.add(SLOW)
    else:
        queue.now += 2
    assert not queue.look()
    assert queue.held() == []
    queue.store(FAST, 40)
    assert queue.held() == [], "its share is the whole batch now"
    queue.store(FAST, 10)
    assert queue.held() == [FAST]
    assert queue.look()


def test_an_actor_that_comes_back_owes_its_share_again() -> None:
    queue = begun(FAST, SLOW)
    queue.away.add(SLOW)
    queue.store(FAST, 40)
    assert not queue.look()
    assert queue.held() == []
    queue.away.clear()
    queue.store(SLOW, 10)
    queue.store(FAST, 50)
    assert not queue.look(needs=1000)
    assert queue.held() == [FAST]


def test_the_wait_for_an_actor_begins_anew_with_each_batch() -> None:
    """An opt step may take longer than an actor may be silent."""
    queue = begun(FAST, SLOW)
    queue.store(FAST, 40)
    queue.store(SLOW, 40)
    queue.now += 10 * LOST_SECONDS
    assert queue.look()
    queue.store(FAST, 50)
    assert not queue.look()
    assert queue.held() == [FAST]


def test_a_draw_that_nobody_waited_for_ends_no_share_of_the_next_batch() -> None:
    queue = begun(FAST, SLOW)
    queue.drawn += queue.batch  # Nobody is held, so the trainer rings no bell.
    queue.store(FAST, 40)
    assert not queue.look(needs=1000)
    assert queue.held() == [FAST]


def test_others_wait_for_slow_actors_as_long_as_anyone_stores_something() -> None:
    queue = begun(FAST, SLOW, THIRD, batch=150)
    queue.store(FAST, 40)
    for _ in range(4):
        queue.now += LOST_SECONDS - 1
        queue.store(SLOW, 10)
        assert not queue.look()
        assert FAST in queue.held()
    queue.now += LOST_SECONDS + 1
    assert not queue.look()
    assert queue.held() == [], "the third has stored nothing all the time"


def test_a_late_actor_owes_a_share_once_it_has_stored_something() -> None:
    queue = begun(FAST, SLOW, batch=90)
    queue.store(THIRD, 1)
    queue.store(FAST, 20)
    assert queue.held() == [FAST], "a third of the batch"
    queue.store(SLOW, 20)
    queue.look()
    assert queue.held() == [FAST, SLOW]
    queue.store(THIRD, 29)
    queue.look()
    assert queue.held() == []


def test_nobody_waits_while_no_batch_is_known_and_all_go_on_if_shares_end() -> None:
    queue = Queue(batch=0)
    for actor in (FAST, SLOW):
        queue.store(actor, 1000)
    assert queue.held() == []
    queue.batch = 100
    queue.store(FAST, 50)
    assert queue.held() == [FAST]
    queue.shares.settle_shares(0, 0, lacks_steps=False)
    assert queue.held() == [], "training is over, or the ratio was changed"


@given(
    batch=st.integers(1, 300),
    unit=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    turns=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), max_size=200),
)
def test_someone_can_always_go_on(batch: int, unit: list[int], turns: Iterable[tuple[int, int]]) -> None:
    """Each actor's steps count only in units, as those of its rollouts do."""
    queue = Queue(batch)
    for number, steps in turns:
        actor = number % len(unit)
        if not queue.shares.holds(actor):
            queue.store(actor, steps)
        ready = sum(queue.totals.get(i, 0) // size * size for i, size in enumerate(unit))
        can_draw = ready - queue.drawn >= batch
        queue.drawn += batch if can_draw else 0
        queue.shares.settle_shares(batch, queue.drawn, lacks_steps=not can_draw)
        assert len(queue.held()) < len(queue.totals), "all actors wait, and so does the trainer"
