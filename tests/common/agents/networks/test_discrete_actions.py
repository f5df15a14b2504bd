from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import nn

from common.agents.networks.discrete_actions import NOT_ALLOWED, ActionIndex, GreedyQ
from common.errors import ConfigError

CPU = torch.device("cpu")
SPACES: list[tuple[Discrete | MultiDiscrete, int]] = [
    (Discrete(3), 3),
    (Discrete(4, start=-2), 4),
    (MultiDiscrete([2, 3]), 6),
    (MultiDiscrete([2, 3, 2], start=[1, 0, -5]), 12),
    (MultiDiscrete(np.array([[2, 3], [1, 4]])), 24),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_output_of_a_forbidden_action_is_exact_so_that_numpy_1_compares_it_right(dtype: torch.dtype) -> None:
    assert torch.tensor(NOT_ALLOWED, dtype=dtype).item() == NOT_ALLOWED


@pytest.mark.parametrize(("space", "size"), SPACES)
def test_every_number_is_another_action_of_the_space_and_back(space: Discrete | MultiDiscrete, size: int) -> None:
    index = ActionIndex("Agent", space, CPU)
    actions = index.to_env(np.arange(size))
    assert index.size == size
    assert (actions.shape[1:], actions.dtype) == (space.shape, space.dtype)
    assert all(space.contains(action) for action in actions)
    assert len(np.unique(actions, axis=0)) == size
    assert index.from_env(torch.from_numpy(actions)).tolist() == list(range(size))


def test_joint_actions_are_numbered_as_numpy_does() -> None:
    index, actions = ActionIndex("Agent", MultiDiscrete([3, 4, 5]), CPU), np.array([[0, 0, 1], [2, 1, 3]])
    assert index.from_env(torch.from_numpy(actions)).tolist() == np.ravel_multi_index(actions.T, (3, 4, 5)).tolist()


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Box(-1, 1, (2,)), r"^Agent: expected a Discrete or MultiDiscrete action space, found Box\(-1"),
        (MultiBinary(3), r"^Agent: expected a Discrete or MultiDiscrete action space, found MultiBinary\(3\)$"),
        (MultiDiscrete([65, 64]), r"^Agent: expected at most 4096 joint actions, found 4160 in MultiDiscrete\(\[65 64"),
        (MultiDiscrete([1000] * 9), r"found 1000000000000000000000000000 in"),
    ],
)
def test_a_space_that_cannot_be_numbered_is_refused(space: gymnasium.Space[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ActionIndex("Agent", space, CPU)


@pytest.mark.parametrize("space", [MultiDiscrete([64, 64]), Discrete(5000)])
def test_as_many_actions_as_are_allowed_are_numbered(space: Discrete | MultiDiscrete) -> None:
    assert ActionIndex("Agent", space, CPU).size in {4096, 5000}


def test_the_action_of_the_highest_value_is_given_as_the_environment_takes_it() -> None:
    values = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    policy = GreedyQ(nn.Identity(), torch.tensor([[5, 0], [5, 1], [6, 0]], dtype=torch.int32))
    actions = policy(values)
    assert actions.tolist() == [[5, 1], [5, 0]]
    assert actions.dtype == torch.int32
