from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from common.agents.networks.critics import Critics, Returns, ScalarReturn
from common.agents.networks.layers import Mlp


@pytest.mark.parametrize("obs_shape", [(3,), (2, 4)])
def test_each_critic_is_a_network_of_its_own_over_observation_and_action(obs_shape: tuple[int, ...]) -> None:
    critics = Critics(3, nn.Flatten(), math.prod(obs_shape), 2, (8,))
    obs, action = torch.rand(5, *obs_shape), torch.rand(5, 2)
    found = critics(obs, action)
    assert found.shape == (3, 5)
    for net, values in zip(critics.nets, found, strict=True):
        torch.testing.assert_close(values, net(torch.cat((obs.flatten(1), action), 1))[:, 0])
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found, critics(obs, action + 1))
    assert not torch.equal(found, critics(obs + 1, action))


def test_critics_share_the_network_that_makes_their_features() -> None:
    encoder = nn.Sequential(Mlp((2, 3), 4, (4,)), nn.ReLU())
    critics, obs, action = Critics(2, encoder, 4, 3, ()), torch.rand(5, 2, 3), torch.rand(5, 3)
    features = encoder(obs)
    inputs = torch.cat((features, action), 1)
    torch.testing.assert_close(critics(obs, action)[1], critics.nets[1](inputs)[:, 0])
    critics(obs, action)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_a_scalar_critics_value_is_its_output_and_the_least_one_or_its_own_follows() -> None:
    outputs = torch.tensor([[[1.0], [5.0]], [[3.0], [2.0]]])
    learnt = ScalarReturn()
    assert learnt.value(outputs).tolist() == [[1, 5], [3, 2]]
    assert learnt.following(outputs, least=True).values.tolist() == [1, 2]
    assert learnt.following(outputs, least=False).values.tolist() == [[1, 5], [3, 2]]
    loss = learnt.loss(outputs, Returns(torch.tensor([1.0, 2.0])), "mse", None)
    assert loss.item() == pytest.approx((0 + 9 + 4 + 0) / 4)
