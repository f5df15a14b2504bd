from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.ingest.fair_turns import FairTurns

GREEDY, HONEST, OTHER = 0, 1, 2


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
