from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn

from common.agents.actions import ActionScale
from common.agents.policies import GreedyActor, GreedyQ


def test_the_action_of_the_highest_value_is_given_as_the_environment_takes_it() -> None:
    values = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    policy = GreedyQ(nn.Identity(), torch.tensor([[5, 0], [5, 1], [6, 0]], dtype=torch.int32))
    actions = policy(values)
    assert actions.tolist() == [[5, 1], [5, 0]]
    assert actions.dtype == torch.int32


def test_an_actors_means_are_squashed_and_given_within_the_bounds() -> None:
    space = Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
    policy = GreedyActor(nn.Identity(), ActionScale("Agent", space, torch.device("cpu")))
    means, deviations = [0.0, math.atanh(0.5)], [7.0, -7.0]
    torch.testing.assert_close(policy(torch.tensor([means + deviations])), torch.tensor([[0.0, 7.5]]))
    assert policy(torch.tensor([[100.0, -100.0]])).tolist() == [[2.0, 0.0]], "a policy without deviations, at both ends"
