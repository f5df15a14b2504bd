from __future__ import annotations

import torch
from torch import nn

from common.agents.networks.heads import DuelingNetwork
from common.agents.networks.layers import Mlp


def test_dueling_values_are_the_value_plus_each_advantages_difference_from_the_mean() -> None:
    streams = torch.tensor([[10.0, 1.0, 2.0, 6.0], [-1.0, 0.0, 0.0, 0.0]])
    found = DuelingNetwork(nn.Identity())(streams)
    assert found.tolist() == [[8.0, 9.0, 13.0], [-1.0, -1.0, -1.0]]


def test_whatever_is_added_to_all_advantages_the_mean_of_dueling_values_is_the_value() -> None:
    net, obs = Mlp((3,), 5, (8,)), torch.rand(7, 3)
    torch.testing.assert_close(DuelingNetwork(net)(obs).mean(dim=1), net(obs)[:, 0])
    shifted = net(obs) + torch.tensor([0.0, *[3.0] * 4])
    torch.testing.assert_close(DuelingNetwork(nn.Identity())(shifted), DuelingNetwork(net)(obs))
