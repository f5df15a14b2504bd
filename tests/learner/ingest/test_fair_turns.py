from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.ingest.fair_turns import BatchShares, FairTurns

GREEDY, HONEST, OTHER = 0, 1, 2
FAST, SLOW, THIRD = 0, 1, 2
LOST_SECONDS = 30.0


class Ratio:
    """Turns under a replay ratio: what was stored, and how many items are allowed."""

    def __init__(self) -> None:
        self.turns, self.stored, self.allowed = FairTurns(), 0.0, 0.0

    def store(self, actor: int, rows: int, name: str | None = None) -> None:
        self.stored += rows
        self.turns.note_batch(actor, name or actor, rows, max(0.0, self.stored - self.allowed))

    def allow(self, items: float) -> float:
        """Allow more; the items until the next turn."""
        self.allowed += items
        return self.turns.settle(max(0.0, self.stored - self.allowed))

    def free(self, *actors: int) -> list[int]:
        return [actor for actor in actors if not self.turns.holds(actor)]


def test_nobody_waits_while_the_ratio_allows_it() -> None:
    ratio = Ratio()
    ratio.allow(100)
    ratio.store(GREEDY, 100)
    assert ratio.free(GREEDY) == [GREEDY]
    assert ratio.allow(0) == 0


def test_each_turn_is_told_once_when_it_comes() -> None:
    ratio = Ratio()
    ratio.store(HONEST, 10)
    ratio.store(GREEDY, 100)
    assert ratio.turns.take_freed() == set()
    ratio.allow(30)
    assert ratio.turns.take_freed() == {HONEST}
    ratio.allow(100)
    assert ratio.turns.take_freed() == {GREEDY}
    assert ratio.turns.take_freed() == set()


def test_a_batch_without_steps_makes_nobody_wait() -> None:
    ratio = Ratio()
    ratio.stored = 0.5  # Less than what counts as a debt of an unknown actor.
    ratio.store(HONEST, 0)
    assert ratio.free(HONEST) == [HONEST]
    ratio.store(GREEDY, 10)
    ratio.store(HONEST, 0)
    assert ratio.free(GREEDY, HONEST) == [HONEST]
    assert ratio.allow(0) > 0, "it is known when the next turn comes"


def test_an_actor_alone_waits_for_its_own_items_and_no_more() -> None:
    ratio = Ratio()
    ratio.store(HONEST, 100)
    assert ratio.allow(0) == 100
    assert ratio.allow(99) == pytest.approx(1)
    assert not ratio.free(HONEST)
    assert ratio.allow(1) == 0
    assert ratio.free(HONEST)


def test_a_small_batch_goes_on_long_before_a_large_one_that_came_first() -> None:
    ratio = Ratio()
    ratio.store(GREEDY, 65_536)
    ratio.store(HONEST, 100)
    assert ratio.allow(0) == pytest.approx(200), "each of the two is allowed half"
    ratio.allow(200)
    assert ratio.free(GREEDY, HONEST) == [HONEST]
    assert ratio.allow(65_435) == pytest.approx(1)
    ratio.allow(1)
    assert ratio.free(GREEDY, HONEST) == [GREEDY, HONEST]


def test_items_that_one_actor_does_not_need_are_the_others() -> None:
    ratio = Ratio()
    ratio.store(GREEDY, 1000)
    ratio.store(HONEST, 10)
    ratio.store(OTHER, 300)
    ratio.allow(10 + 300 + 300)
    assert ratio.free(GREEDY, HONEST, OTHER) == [HONEST, OTHER]
    assert ratio.allow(0) == pytest.approx(700), "all that is left is its own"


def test_a_batch_does_not_share_in_what_was_allowed_before_it_came() -> None:
    ratio = Ratio()
    ratio.store(GREEDY, 100)
    ratio.allowed += 60  # The trainer has drawn, and nobody has looked yet.
    ratio.store(HONEST, 100)
    assert ratio.allow(0) == pytest.approx(80), "40 are left to one and 100 to the other"


def test_an_actor_that_stores_again_before_its_turn_owes_both_batches_and_counts_once() -> None:
    ratio = Ratio()
    ratio.store(GREEDY, 100)
    ratio.store(GREEDY, 100)
    ratio.store(HONEST, 50)
    assert ratio.allow(0) == pytest.approx(100)
    ratio.allow(100)
    assert ratio.free(GREEDY, HONEST) == [HONEST]
    ratio.allow(149)
    assert not ratio.free(GREEDY)
    assert ratio.allow(1) == 0


def test_what_a_former_process_stored_is_owed_by_nobody_who_is_here() -> None:
    turns = FairTurns()
    turns.note_batch(HONEST, HONEST, 10, excess=10_010)
    assert turns.settle(9990.5) == pytest.approx(0.5)
    turns.settle(9990)
    assert not turns.holds(HONEST)


def test_a_ratio_that_is_changed_frees_everybody() -> None:
    ratio = Ratio()
    ratio.store(GREEDY, 1000)
    ratio.store(HONEST, 1000)
    assert ratio.turns.settle(0.0) == 0
    assert ratio.free(GREEDY, HONEST) == [GREEDY, HONEST]


def test_the_actors_of_one_name_have_one_share_and_take_turns() -> None:
    ratio, many = Ratio(), range(10, 20)
    for actor in many:
        ratio.store(actor, 100, "mallory")
    ratio.store(HONEST, 100, "alice")
    assert ratio.allow(0) == pytest.approx(200)
    ratio.allow(200)
    assert ratio.free(HONEST, *many) == [HONEST, 10], "each of the two names was allowed 100"
    ratio.store(10, 100, "mallory")
    ratio.allow(900)
    assert ratio.free(*many) == [*range(11, 20)]
    assert ratio.allow(0) == pytest.approx(100)
    ratio.allow(100)
    assert ratio.free(*many) == [*many]


def test_a_row_of_the_table_that_another_name_has_now_waits_only_for_its_own_turn() -> None:
    ratio = Ratio()
    ratio.store(HONEST, 1000, "mallory")
    ratio.store(HONEST, 100, "alice")
    ratio.allow(200)
    assert ratio.free(HONEST) == [HONEST]
    assert ratio.allow(0) == pytest.approx(900), "what mallory's actor has stored is still owed"
    assert ratio.allow(900) == 0


@given(
    batches=st.lists(st.integers(1, 5000), min_size=1, max_size=5),
    actors=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    draws=st.lists(st.integers(1, 2000), min_size=1, max_size=30),
)
def test_names_that_always_have_more_are_allowed_the_same_however_many_actors_they_have(
    batches: list[int], actors: list[int], draws: list[int]
) -> None:
    ratio, stored = Ratio(), Counter[str]()
    fleet = {(10 * i + k): (f"name{i}", rows) for i, rows in enumerate(batches) for k in range(actors[i])}
    for draw in draws:
        left = float(draw)
        while left > 0.01:
            for actor in ratio.free(*fleet):
                name, rows = fleet[actor]
                ratio.store(actor, rows, name)
                stored[name] += rows
            step = min(left, ratio.allow(0))
            ratio.allow(step)
            left -= step
        assert ratio.turns._owed == pytest.approx(ratio.stored - ratio.allowed, abs=0.1)
    share = sum(draws) / len(batches)
    for i, rows in enumerate(batches):
        assert share - 0.1 <= stored[f"name{i}"] <= share + rows * actors[i] + 0.1


@given(
    batches=st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    draws=st.lists(st.integers(1, 2000), min_size=1, max_size=50),
)
def test_actors_that_always_have_more_are_allowed_the_same_whatever_their_batches(
    batches: list[int], draws: list[int]
) -> None:
    ratio, stored = Ratio(), Counter[int]()
    for draw in draws:
        left = float(draw)
        while left > 0.01:
            for actor in ratio.free(*range(len(batches))):
                ratio.store(actor, batches[actor])
                stored[actor] += batches[actor]
            step = min(left, ratio.allow(0))
            ratio.allow(step)
            left -= step
        assert ratio.turns._owed == pytest.approx(ratio.stored - ratio.allowed, abs=0.1)
    share = sum(draws) / len(batches)
    for actor, rows in enumerate(batches):
        assert share - 0.1 <= stored[actor] <= share + rows + 0.1


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
