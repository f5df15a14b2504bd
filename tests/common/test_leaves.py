from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from common.errors import PluginError
from common.leaves import as_shape, by_path, copy_leaves, empty_leaves, on_host, pick_leaves, put_leaves, stack_lanes

ARM = Dict({"joints": Box(-1, 1, (2,), np.float32), "mode": Discrete(3)})


def test_empty_leaves_are_one_array_or_one_for_each_path() -> None:
    single, several = empty_leaves(Box(0, 255, (4,), np.uint8), 3), empty_leaves(ARM, 3)
    assert isinstance(single, np.ndarray)
    assert isinstance(several, dict)
    assert (single.shape, single.dtype.str) == ((3, 4), "|u1")
    found = {path: (leaf.shape, leaf.dtype.str) for path, leaf in several.items()}
    assert found == {"joints": ((3, 2), "<f4"), "mode": ((3,), "<i8")}


@pytest.mark.parametrize("space", [Discrete(3, start=-7), MultiDiscrete([3, 2], start=[4, -1])], ids=str)
def test_empty_leaves_of_indices_are_elements_of_their_space(space: Any) -> None:
    assert all(element in space for element in by_path(empty_leaves(space, 2))[""])


@pytest.mark.parametrize("space", [Box(-1, 1, (2,), np.float32), ARM], ids=["one array", "several"])
def test_leaves_of_one_lane_or_several_are_set_and_read_alone(space: Any) -> None:
    leaves, ones = empty_leaves(space, 3), empty_leaves(space, 3)
    for leaf in ones.values() if isinstance(ones, dict) else (ones,):
        leaf.fill(1)
    before = copy_leaves(leaves)
    put_leaves(leaves, 1, pick_leaves(ones, 1))
    put_leaves(leaves, np.array([2]), pick_leaves(ones, np.array([0])))
    for lane, expected in enumerate([before, ones, ones]):
        np.testing.assert_equal(pick_leaves(leaves, lane), pick_leaves(expected, lane))


@pytest.mark.parametrize("value", [np.zeros(1, np.float32), np.float32(0), np.zeros((1, 2), np.float32)])
def test_a_value_of_another_shape_is_not_spread_over_the_lane(value: Any) -> None:
    with pytest.raises(ValueError, match=r"expected the shape \[2\], found"):
        put_leaves(np.zeros((3, 2), np.float32), 1, value)


def test_tensors_at_any_depth_become_arrays() -> None:
    ones = np.ones(1)
    found = on_host({"a": torch.ones(2, requires_grad=True), "b": (torch.zeros(1), ones)})
    assert found["a"].tolist() == [1, 1]
    assert isinstance(found["b"][0], np.ndarray)
    assert found["b"][1] is ones


def test_a_single_zero_stands_for_zeros_and_no_other_number_for_an_array() -> None:
    assert as_shape(0, (2,), "info['force']").tolist() == [0, 0]
    with pytest.raises(PluginError, match=r"env: info\['force'\]: expected the shape \[2\], found \[\]"):
        as_shape(1, (2,), "info['force']")


def test_a_value_that_numpy_cannot_read_is_refused_by_name() -> None:
    with pytest.raises(PluginError, match=r"env: info\['force'\]: expected the shape \[2\], found a Tensor that numpy"):
        as_shape(torch.ones(2, requires_grad=True), (2,), "info['force']")


def test_single_elements_become_the_leaves_of_as_many_lanes() -> None:
    first, second = np.arange(2.0), np.arange(2.0, 4.0)
    assert by_path(stack_lanes([first, second]))[""].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    stacked = stack_lanes([{"a": first, "b": second}, {"a": second, "b": first}])
    assert by_path(stacked)["a"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert by_path(stacked)["b"].tolist() == [[2.0, 3.0], [0.0, 1.0]]
