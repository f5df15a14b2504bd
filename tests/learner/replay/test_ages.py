from __future__ import annotations

from learner.replay.ages import N_NOTES, RowAges


def test_a_pause_before_an_item_came_does_not_make_it_older() -> None:
    ages = RowAges(capacity=100, end=0, now=10.0)
    ages.note(0, 50.0)
    ages.note(20, 51.0)
    ages.note(20, 90.0)
    ages.note(40, 91.0)
    assert ages.came_at(0) == 50.0, "at the last note before it was there"
    assert ages.came_at(20) == 90.0


def test_with_a_steady_flow_the_age_is_right_to_a_256th_of_the_replay_and_little_is_kept() -> None:
    capacity = 10_000
    ages = RowAges(capacity, end=0, now=0.0)
    for end in range(0, 50_000, 10):
        ages.note(end, now=float(end))
        oldest = max(0, end - capacity)
        assert 0 <= oldest - ages.came_at(oldest) <= capacity / N_NOTES + 10
    assert len(ages) <= N_NOTES + 2


def test_items_from_before_a_restart_count_as_come_at_the_restart() -> None:
    ages = RowAges(capacity=100, end=70, now=5.0)
    ages.note(80, 6.0)
    assert ages.came_at(0) == 5.0
