from __future__ import annotations

import numpy as np
import pytest
import torch

from common.agents.machinery.lane_states import _GAMMA, LaneMemory, LaneRandom, _mix
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


def where(*begins: int) -> Array:
    return np.array(begins, np.bool_)


def remembering(*values: float) -> LaneMemory:
    memory = LaneMemory(2)
    memory.begin(np.ones(len(values), np.bool_), is_train=True)
    memory.write(torch.tensor(values)[:, None].repeat(1, 2), is_train=True)
    return memory


def test_every_lane_begins_with_zeros() -> None:
    memory = LaneMemory(2, 3)
    memory.begin(where(1, 1), is_train=True)
    assert torch.equal(memory.read(is_train=True), torch.zeros(2, 2, 3))


def test_a_lane_that_begins_forgets_and_no_other_one_does() -> None:
    memory = remembering(1.0, 2.0, 3.0)
    before = memory.read(is_train=True)
    memory.begin(where(0, 1, 0), is_train=True)
    assert memory.read(is_train=True)[:, 0].tolist() == [1.0, 0.0, 3.0]
    assert before[:, 0].tolist() == [1.0, 2.0, 3.0], "states that were given out stay as they were"


def test_with_another_number_of_lanes_all_begin() -> None:
    memory = remembering(1.0, 2.0)
    memory.begin(where(0, 0, 0), is_train=True)
    assert torch.equal(memory.read(is_train=True), torch.zeros(3, 2))


def test_an_evaluation_has_states_of_its_own() -> None:
    memory = remembering(1.0, 2.0)
    memory.begin(where(1), is_train=False)
    assert memory.read(is_train=False).shape == (1, 2)
    assert memory.read(is_train=True)[:, 0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("began", [True, False])
def test_the_states_of_train_mode_survive_a_restart(began: bool) -> None:
    memory = remembering(1.0, 2.0) if began else LaneMemory(2)
    tensors = {f"memory.{key}": value for key, value in memory.collect().items()}
    resumed = remembering(7.0)
    resumed.load(tensors, "memory.")
    resumed.begin(where(0, 0), is_train=True)
    assert resumed.read(is_train=True)[:, 0].tolist() == ([1.0, 2.0] if began else [0.0, 0.0])


# Of some lanes.


def numbers(*lanes: int) -> Array:
    return np.array(lanes, np.int64)


def test_some_lanes_are_read_and_written_by_their_numbers_and_others_stay() -> None:
    memory = remembering(1.0, 2.0, 3.0)
    assert memory.read(numbers(2, 0), is_train=True)[:, 0].tolist() == [3.0, 1.0]
    memory.write(torch.tensor([[7.0, 7.0], [8.0, 8.0]]), numbers(2, 0), is_train=True)
    assert memory.read(is_train=True)[:, 0].tolist() == [8.0, 2.0, 7.0]


def test_only_those_of_some_lanes_forget_whose_episodes_begin() -> None:
    memory = remembering(1.0, 2.0, 3.0)
    memory.begin(where(1, 0), numbers(2, 0), is_train=True)
    assert memory.read(is_train=True)[:, 0].tolist() == [1.0, 2.0, 0.0]


def test_a_lane_with_a_new_number_is_added_with_zeros() -> None:
    memory = LaneMemory(2)
    memory.begin(where(1), numbers(5), is_train=True)
    memory.write(torch.ones(1, 2), numbers(5), is_train=True)
    memory.begin(where(1, 0), numbers(70, 5), is_train=True)
    assert memory.read(numbers(5, 70, 0), is_train=True)[:, 0].tolist() == [1.0, 0.0, 0.0]


def test_states_that_were_written_in_inference_mode_can_be_cleared_outside() -> None:
    memory = LaneMemory(2)
    with torch.inference_mode():
        memory.write(torch.ones(3, 2), is_train=True)
    memory.begin(where(1), numbers(1), is_train=True)
    assert memory.read(is_train=True)[:, 0].tolist() == [1.0, 0.0, 1.0]
