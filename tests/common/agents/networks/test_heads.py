from __future__ import annotations

import torch
from torch import nn

from common.agents.networks.heads import CategoricalReturns, DuelingNetwork, QuantileReturns, join_dueling
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


def test_streams_are_joined_along_the_axis_of_actions_at_each_level() -> None:
    streams = torch.rand(2, 4, 5)
    found = join_dueling(streams, dim=1)
    for level in range(5):
        torch.testing.assert_close(found[:, :, level], join_dueling(streams[:, :, level]))


def test_the_value_of_a_categorical_return_is_its_mean() -> None:
    logits = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]).log().flatten()[None]
    net = CategoricalReturns(nn.Identity(), -1.0, 3.0, 3, dueling=False)
    assert net.atoms.tolist() == [-1.0, 1.0, 3.0]
    torch.testing.assert_close(net(logits), torch.tensor([[1.6, -1.0]]))


def test_the_value_of_quantiles_is_their_mean() -> None:
    net = QuantileReturns(nn.Identity(), 2, dueling=False)
    assert net(torch.tensor([[1.0, 3.0, 10.0, 20.0]])).tolist() == [[2.0, 15.0]]


def test_the_outputs_of_dueling_returns_are_those_of_the_value_and_of_each_advantage() -> None:
    net = QuantileReturns(nn.Identity(), 2, dueling=True)
    outputs = net.outputs(torch.tensor([[10.0, 20.0, 1.0, 1.0, 3.0, 5.0]]))
    assert outputs.tolist() == [[[9.0, 18.0], [11.0, 22.0]]]
