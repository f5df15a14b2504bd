from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from common.agents.networks.layers import Head, Mlp
from common.agents.networks.noisy import NoisyLinear, add_noise, noise_in, noisy_layers


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def test_a_noisy_layer_is_that_of_the_slow_formula() -> None:
    layer, features = NoisyLinear(nn.Linear(3, 2), sigma=0.5), torch.rand(4, 3)
    layer.sigma.copy_(torch.rand(2, 3))
    with noise_in(generator(), layer):
        found = layer(features)
    normal = torch.randn(5, generator=generator()).tolist()
    noise = [math.copysign(math.sqrt(abs(number)), number) for number in normal]
    out, in_ = noise[:2], noise[2:]
    assert layer.bias_sigma is not None
    for row, outputs in zip(features.tolist(), found.tolist(), strict=True):
        for i in range(2):
            weights = [float(layer.layer.weight[i, j] + layer.sigma[i, j] * out[i] * in_[j]) for j in range(3)]
            bias = float(layer.layer.bias[i] + layer.bias_sigma[i] * out[i])
            assert outputs[i] == pytest.approx(sum(w * x for w, x in zip(weights, row, strict=True)) + bias, abs=1e-5)


@pytest.mark.parametrize("shape", [(4, 3), (5, 4, 3)], ids=["rows", "quantiles of rows"])
def test_noise_of_each_row_is_that_of_the_layer_for_this_row_alone(shape: tuple[int, ...]) -> None:
    net = add_noise(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), 0.5)
    obs, normal = torch.rand(shape), torch.randn(4, 21)
    assert [layer.n_numbers for layer in noisy_layers(net)] == [11, 10]
    with noise_in(normal, net):
        found = net(obs)
    for row in range(4):
        for layer, numbers in zip(noisy_layers(net), torch.split(normal[row], [11, 10]), strict=True):
            layer.take(numbers)
        torch.testing.assert_close(found[..., row, :], net(obs[..., row, :]))
        for layer in noisy_layers(net):
            layer.rest()


def test_sigma_begins_at_its_share_of_the_inputs() -> None:
    layer = NoisyLinear(nn.Linear(16, 2), sigma=0.5)
    assert layer.bias_sigma is not None
    for sigma in (layer.sigma, layer.bias_sigma):
        assert set(sigma.flatten().tolist()) == {0.125}


def test_noise_is_drawn_anew_in_each_block_and_gone_after_it() -> None:
    net, obs, chance = add_noise(Mlp((3,), 2, (8,)), 0.5), torch.rand(4, 3), generator()
    clean = net(obs)
    with noise_in(chance, net):
        first = net(obs)
        torch.testing.assert_close(net(obs), first)
    with noise_in(chance, net):
        second = net(obs)
    assert not torch.allclose(first, clean)
    assert not torch.allclose(first, second)
    assert torch.equal(net(obs), clean)


def test_noise_is_gone_also_after_an_error() -> None:
    net, obs = add_noise(Mlp((3,), 2, ()), 0.5), torch.rand(4, 3)
    clean = net(obs)
    with pytest.raises(RuntimeError), noise_in(generator(), net):
        net(torch.rand(4, 5))
    assert torch.equal(net(obs), clean)


def test_every_linear_layer_becomes_noisy_and_gives_what_it_gave() -> None:
    plain, obs = Mlp((3,), 2, (8, 8)), torch.rand(4, 3)
    expected = plain(obs)
    noisy = add_noise(plain, 0.5)
    assert [type(module) for module in noisy.modules()].count(NoisyLinear) == 3
    assert torch.equal(noisy(obs), expected)
    assert isinstance(add_noise(nn.Linear(2, 2), 0.5), NoisyLinear)


def test_layers_that_are_noisy_stay_as_they_are() -> None:
    once = add_noise(Mlp((3,), 2, (8,)), 0.5)
    names = set(once.state_dict())
    assert set(add_noise(once, 0.5).state_dict()) == names


def test_the_size_of_the_noise_is_learnt() -> None:
    net = add_noise(Mlp((3,), 2, (8,)), 0.5)
    with noise_in(generator(), net):
        net(torch.rand(4, 3)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in net.parameters())


def test_a_noisy_head_gives_float32_under_autocast() -> None:
    head = NoisyLinear(Head(3, 2), 0.5)
    with torch.autocast("cpu", torch.bfloat16), noise_in(generator(), head):
        assert head(torch.rand(4, 3)).dtype == torch.float32


def test_a_layer_without_a_bias_has_no_noise_of_one() -> None:
    layer = NoisyLinear(nn.Linear(3, 2, bias=False), 0.5)
    with noise_in(generator(), layer):
        assert layer(torch.zeros(1, 3)).tolist() == [[0.0, 0.0]]
