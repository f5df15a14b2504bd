from __future__ import annotations

import numpy as np
import pytest

from common.agents.machinery.lane_states import _GAMMA, LaneRandom, _mix
from common.data import Array


def lanes(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def test_the_numbers_are_those_of_splitmix64() -> None:
    """The first outputs for the seed 1234567 are published (https://prng.di.unimi.it/splitmix64.c gives them)."""
    found = _mix(np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * _GAMMA)
    assert found.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_lane_draws_the_same_numbers_alone_and_beside_others_in_any_order() -> None:
    beside, alone = LaneRandom(5), LaneRandom(5)
    found = [beside.draw(each, 3)[place] for each, place in ((lanes(0, 9), 1), (lanes(9, 2, 4), 0), (lanes(3, 9), 1))]
    beside.draw(lanes(0, 1), 7)
    assert np.array_equal(np.concatenate(found), alone.draw(lanes(9), 9)[0])


def test_lanes_seeds_and_uses_have_other_numbers() -> None:
    sources = LaneRandom(0), LaneRandom(1), LaneRandom(0, use=1)
    found = np.concatenate([source.draw(np.arange(20), 2000) for source in sources])
    assert len(np.unique(found)) == found.size
    correlations = np.corrcoef(found) - np.eye(60)
    assert np.abs(correlations).max() < 0.12


@pytest.mark.parametrize(
    ("method", "mean", "deviation"),
    [
        ("random", 0.5, np.sqrt(1 / 12)),
        ("standard_normal", 0.0, 1.0),
        ("standard_exponential", 1.0, 1.0),
        ("gumbel", np.euler_gamma, np.pi / np.sqrt(6)),
    ],
)
def test_numbers_have_the_mean_and_deviation_of_their_distribution(method: str, mean: float, deviation: float) -> None:
    numbers = getattr(LaneRandom(0).of(np.arange(100)), method)(2000)
    assert numbers.shape == (100, 2000)
    assert numbers.mean() == pytest.approx(mean, abs=0.01)
    assert numbers.std() == pytest.approx(deviation, rel=0.01)
    assert np.isfinite(numbers).all()


def test_uniform_numbers_fill_their_interval_evenly() -> None:
    numbers = LaneRandom(3).draw(np.arange(50), 4000)
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 160  # Chi square of 99 degrees: above it with chance 1 in 10,000.
    assert 0 < numbers.min() < numbers.max() < 1


def test_lanes_go_on_after_a_restart() -> None:
    source, resumed = LaneRandom(0), LaneRandom(0)
    source.draw(lanes(0, 3), 4)
    resumed.load({f"chance.{name}": tensor for name, tensor in source.collect().items()}, "chance.")
    assert np.array_equal(source.draw(lanes(3, 5), 2), resumed.draw(lanes(3, 5), 2))
    assert LaneRandom(0).collect() == {}
