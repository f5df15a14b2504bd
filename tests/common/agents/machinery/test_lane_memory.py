from __future__ import annotations

import numpy as np
import pytest
import torch

from common.agents.network_agent import LaneMemory
from common.data import Array


def lanes(*begins: int) -> Array:
    return np.array(begins, np.bool_)


def remembering(*values: float) -> LaneMemory:
    memory = LaneMemory(2)
    memory.begin(np.ones(len(values), np.bool_), is_train=True)
    memory.write(torch.tensor(values)[:, None].repeat(1, 2), is_train=True)
    return memory


def test_every_lane_begins_with_zeros() -> None:
    memory = LaneMemory(2, 3)
    memory.begin(lanes(1, 1), is_train=True)
    assert torch.equal(memory.read(is_train=True), torch.zeros(2, 2, 3))


def test_a_lane_that_begins_forgets_and_no_other_one_does() -> None:
    memory = remembering(1.0, 2.0, 3.0)
    before = memory.read(is_train=True)
    memory.begin(lanes(0, 1, 0), is_train=True)
    assert memory.read(is_train=True)[:, 0].tolist() == [1.0, 0.0, 3.0]
    assert before[:, 0].tolist() == [1.0, 2.0, 3.0], "states that were given out stay as they were"


def test_with_another_number_of_lanes_all_begin() -> None:
    memory = remembering(1.0, 2.0)
    memory.begin(lanes(0, 0, 0), is_train=True)
    assert torch.equal(memory.read(is_train=True), torch.zeros(3, 2))


def test_an_evaluation_has_states_of_its_own() -> None:
    memory = remembering(1.0, 2.0)
    memory.begin(lanes(1), is_train=False)
    assert memory.read(is_train=False).shape == (1, 2)
    assert memory.read(is_train=True)[:, 0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("began", [True, False])
def test_the_states_of_train_mode_survive_a_restart(began: bool) -> None:
    memory = remembering(1.0, 2.0) if began else LaneMemory(2)
    tensors = {f"memory.{key}": value for key, value in memory.collect().items()}
    resumed = remembering(7.0)
    resumed.load(tensors, "memory.")
    resumed.begin(lanes(0, 0), is_train=True)
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
    memory.begin(lanes(1, 0), numbers(2, 0), is_train=True)
    assert memory.read(is_train=True)[:, 0].tolist() == [1.0, 2.0, 0.0]


def test_a_lane_with_a_new_number_is_added_with_zeros() -> None:
    memory = LaneMemory(2)
    memory.begin(lanes(1), numbers(5), is_train=True)
    memory.write(torch.ones(1, 2), numbers(5), is_train=True)
    memory.begin(lanes(1, 0), numbers(70, 5), is_train=True)
    assert memory.read(numbers(5, 70, 0), is_train=True)[:, 0].tolist() == [1.0, 0.0, 0.0]


def test_states_that_were_written_in_inference_mode_can_be_cleared_outside() -> None:
    memory = LaneMemory(2)
    with torch.inference_mode():
        memory.write(torch.ones(3, 2), is_train=True)
    memory.begin(lanes(1), numbers(1), is_train=True)
    assert memory.read(is_train=True)[:, 0].tolist() == [1.0, 0.0, 1.0]
