from __future__ import annotations

from learner.replay.ages import N_MARKS, ItemAges


def test_the_oldest_item_came_when_it_came_however_long_nothing_came_before() -> None:
    ages = ItemAges(capacity=100, end=0, now=10.0)
    ages.note(0, 50.0)
    ages.note(20, 51.0)
    ages.note(20, 90.0)
    ages.note(40, 91.0)
    assert ages.came_at(0) == 50.0, "at the last look before it was there"
    assert ages.came_at(20) == 90.0


def test_with_a_steady_flow_the_age_is_right_to_a_256th_of_the_replay_and_little_is_kept() -> None:
    capacity = 10_000
    ages = ItemAges(capacity, end=0, now=0.0)
    for end in range(0, 50_000, 10):
        ages.note(end, now=float(end))
        oldest = max(0, end - capacity)
        assert 0 <= oldest - ages.came_at(oldest) <= capacity / N_MARKS + 10
    assert len(ages._marks) <= N_MARKS + 2


def test_items_of_before_a_restart_count_as_come_then() -> None:
    ages = ItemAges(capacity=100, end=70, now=5.0)
    ages.note(80, 6.0)
    assert ages.came_at(0) == 5.0
