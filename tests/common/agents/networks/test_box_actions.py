from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from common.agents.networks.box_actions import ActionScale, GreedyActor
from common.errors import ConfigError

CPU = torch.device("cpu")
LARGEST = float(np.finfo(np.float32).max)
ASYMMETRIC = Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))


# Continuous.


def test_the_ends_and_the_middle_are_those_of_the_space() -> None:
    scale = ActionScale("Agent", ASYMMETRIC, CPU)
    unit = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [0.5, -0.5]])
    actions = scale.to_env(unit)
    assert actions.tolist() == [[-2, 0], [0, 5], [2, 10], [1, 2.5]]
    assert torch.equal(scale.from_env(actions), unit)


BOUND = st.floats(-1000, 1000, width=32)


@given(BOUND, st.floats(0.125, 1000, width=32), st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=8))
def test_there_and_back_is_the_same_and_always_within_bounds(low: float, width: float, values: list[float]) -> None:
    space = Box(np.float32(low), np.float32(low + width), (1,))
    scale, unit = ActionScale("Agent", space, CPU), torch.tensor(values)[:, None]
    actions = scale.to_env(unit)
    assert all(space.contains(action) for action in actions.numpy())
    torch.testing.assert_close(scale.from_env(actions), unit, atol=4e-3, rtol=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 3), ()])
def test_actions_have_the_shape_and_dtype_of_their_space(shape: tuple[int, ...], dtype: type) -> None:
    scale = ActionScale("Agent", Box(-3, 5, shape, dtype), CPU)
    assert scale.size == max(1, int(np.prod(shape)))
    actions = scale.to_env(torch.zeros(7, scale.size))
    assert actions.shape == (7, *shape)
    assert actions.numpy().dtype == dtype
    assert scale.from_env(actions).tolist() == [[0.0] * scale.size] * 7


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gymnasium.spaces.Discrete(3), r"^Agent: expected a Box action space of floats, found Discrete\(3\)$"),
        (Box(0, 255, (2,), np.uint8), r"^Agent: expected a Box action space of floats, found Box\(0, 255"),
        (Box(-np.inf, 1, (2,)), r"^Agent: expected an action space with finite bounds.* found Box\(-inf, 1"),
        (Box(0, np.inf, (2,)), r"^Agent: expected an action space with finite bounds.* found Box\(0.0, inf"),
        (Box(-LARGEST, LARGEST, (2,)), r"^Agent: expected an action space with finite bounds.* found Box\(-3"),
        (Box(1, 1, (2,)), r"^Agent: expected .* low below high, .*; found Box\(1"),
    ],
)
def test_a_space_without_two_finite_ends_is_refused_by_name(space: gymnasium.Space[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ActionScale("Agent", space, CPU)


# Discrete.


def test_an_actors_means_are_squashed_and_given_within_the_bounds() -> None:
    space = Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
    policy = GreedyActor(nn.Identity(), ActionScale("Agent", space, torch.device("cpu")))
    means, deviations = [0.0, math.atanh(0.5)], [7.0, -7.0]
    torch.testing.assert_close(policy(torch.tensor([means + deviations])), torch.tensor([[0.0, 7.5]]))
    assert policy(torch.tensor([[100.0, -100.0]])).tolist() == [[2.0, 0.0]], "a policy without deviations, at both ends"
