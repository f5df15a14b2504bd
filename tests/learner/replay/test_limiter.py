from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.replay.limiter import RatioLimiter


def test_nothing_is_drawn_before_the_warm_up() -> None:
    for limiter in (RatioLimiter(None, warmup=100), RatioLimiter(8.0, warmup=100)):
        assert not limiter.may_sample(inserted=99, sampled=0)
        assert limiter.may_sample(inserted=100, sampled=0)


def test_without_a_ratio_both_sides_run_free() -> None:
    limiter = RatioLimiter(None, warmup=1)
    assert limiter.may_sample(inserted=1, sampled=10**9)
    assert limiter.excess(inserted=10**9, sampled=0) == 0


def test_the_trainer_may_run_ahead_by_the_error_buffer_and_no_more() -> None:
    limiter = RatioLimiter(4.0, warmup=10, error_buffer=20)
    assert limiter.may_sample(inserted=15, sampled=5 * 4 + 20)
    assert not limiter.may_sample(inserted=15, sampled=5 * 4 + 21)


def test_actors_may_run_ahead_by_the_error_buffer_and_no_more() -> None:
    limiter = RatioLimiter(4.0, warmup=10, error_buffer=20)
    assert limiter.excess(inserted=15, sampled=0) == 0
    assert limiter.excess(inserted=115, sampled=0) == 105 - 20 / 4
    assert limiter.draws_for(105 - 20 / 4) == 105 * 4 - 20
    assert limiter.excess(inserted=115, sampled=105 * 4 - 20) == 0


@pytest.mark.parametrize("batch", [1, 64, 1000])
@pytest.mark.parametrize("insert", [1, 100, 5000])
@given(spi=st.floats(0.01, 1000), error=st.one_of(st.none(), st.floats(0.001, 1e6)), warmup=st.integers(1, 5000))
def test_one_side_can_always_go_on_and_the_ratio_is_kept(
    batch: int, insert: int, spi: float, error: float | None, warmup: int
) -> None:
    limiter = RatioLimiter(spi, warmup, error)
    inserted = sampled = 0
    for _ in range(200):
        sample, hold = limiter.may_sample(inserted, sampled), limiter.excess(inserted, sampled) > 0
        assert sample or not hold, "both sides wait for each other"
        if sample:
            sampled += batch
        if not hold:
            inserted += insert
    allowed = max(1.0, 0.1 * warmup * spi) if error is None else error
    if inserted > warmup:
        drift = abs((inserted - warmup) * spi - sampled)
        assert drift <= allowed + 1 + batch + insert * spi


@pytest.mark.parametrize(("warmup", "before", "after"), [(0, 10, 25), (20, 30, 50), (20, 5, 50), (50, 5, 10)])
def test_items_that_came_while_nobody_drew_leave_the_balance_as_it_was(warmup: int, before: int, after: int) -> None:
    limiter = RatioLimiter(4.0, warmup, error_buffer=0.0)
    sampled = limiter.draws_for(limiter.excess(before, sampled=0))
    assert sampled + limiter.draws_between(before, after) == limiter.draws_for(limiter.excess(after, sampled=0))


def test_without_a_ratio_nothing_is_owed() -> None:
    assert RatioLimiter(None, 0).draws_between(10, 1000) == 0


RATIOS = st.one_of(st.none(), st.floats(0.01, 1000))


@given(
    before=RATIOS,
    after=RATIOS,
    warmup=st.integers(1, 5000),
    inserted=st.integers(0, 10**9),
    sampled=st.integers(0, 10**9),
)
def test_a_change_leaves_neither_side_anything_to_catch_up(
    before: float | None, after: float | None, warmup: int, inserted: int, sampled: int
) -> None:
    limiter = RatioLimiter(before, warmup).since(after, inserted, sampled)
    assert limiter.excess(inserted, sampled) == 0, "nobody is held back for what came before"
    assert limiter.may_sample(inserted, sampled) == (inserted >= warmup)
    if after is not None and inserted >= warmup:
        error = max(1.0, 0.1 * warmup * after)
        assert not limiter.may_sample(inserted, sampled + int(error) + 2), "and nothing before is drawn for now"
        expected = max(0.0, 5000 - error / after)
        assert limiter.excess(inserted + 5000, sampled) == pytest.approx(expected, rel=1e-3, abs=1.0)
