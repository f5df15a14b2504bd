from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from common.agents.networks import (
    Critics,
    DuelingNetwork,
    EntropyCoef,
    Head,
    ImpalaCnn,
    Mlp,
    NatureCnn,
)
from common.errors import ConfigError


@pytest.mark.parametrize("in_shape", [(3,), (2, 4), (1, 2, 3)])
@pytest.mark.parametrize("units", [(), (8,), (8, 5)])
def test_each_observation_of_any_shape_gives_one_row_of_outputs(
    in_shape: tuple[int, ...], units: tuple[int, ...]
) -> None:
    outputs = Mlp(in_shape, 6, units)(torch.zeros(7, *in_shape))
    assert outputs.shape == (7, 6)


def test_layers_are_as_wide_as_asked_for() -> None:
    linear = [layer for layer in Mlp((2, 3), 4, (8, 5)).modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(6, 8), (8, 5), (5, 4)]


def test_it_computes_what_the_slow_formula_does() -> None:
    net = Mlp((3,), 2, (4,))
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    w1, b1, w2, b2 = (parameter.detach().numpy() for parameter in net.parameters())
    slow = np.maximum(obs @ w1.T + b1, 0) @ w2.T + b2
    np.testing.assert_allclose(net(torch.from_numpy(obs)).detach().numpy(), slow, rtol=1e-5, atol=1e-6)


def test_observations_of_bytes_are_taken_as_numbers() -> None:
    net = Mlp((3,), 2, (4,))
    obs = torch.tensor([[0, 7, 255]], dtype=torch.uint8)
    assert torch.equal(net(obs), net(torch.tensor([[0.0, 7.0, 255.0]])))


def test_the_observations_are_left_as_they_were() -> None:
    obs = torch.full((2, 3), -1.0)
    Mlp((3,), 2, (4,))(obs)
    assert torch.equal(obs, torch.full((2, 3), -1.0))


def test_outputs_are_float32_also_where_hidden_layers_are_not() -> None:
    net, obs = Mlp((3,), 2, (64,)), torch.rand(5, 3)
    exact = net(obs)
    with torch.autocast("cpu", torch.bfloat16):
        hidden, found = net.layers[:-1](obs), net(obs)
    assert hidden.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    assert not torch.equal(found, found.bfloat16().float())
    torch.testing.assert_close(found, exact, atol=0.02, rtol=0)


def test_the_last_layer_is_an_ordinary_one_outside_of_autocast() -> None:
    head, features = Head(3, 2), torch.rand(5, 3)
    assert torch.equal(head(features), functional.linear(features, head.weight, head.bias))
    assert set(head.state_dict()) == {"weight", "bias"}


# Networks for images.


def images(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8))


def test_nature_cnn_computes_what_the_paper_says() -> None:
    net, obs = NatureCnn((4, 84, 84), 6), images(3, 4, 84, 84)
    *convs, w4, b4, w5, b5 = net.parameters()
    maps = obs.float() / 255
    for weight, bias, stride in zip(convs[::2], convs[1::2], (4, 2, 1), strict=True):
        maps = functional.conv2d(maps, weight, bias, stride).relu()
    assert maps.shape == (3, 64, 7, 7)
    slow = functional.linear(functional.linear(maps.flatten(1), w4, b4).relu(), w5, b5)
    torch.testing.assert_close(net(obs), slow)
    assert sum(parameter.numel() for parameter in net.parameters()) == 1_687_206


def test_impala_cnn_computes_what_the_paper_says() -> None:
    net, obs = ImpalaCnn((4, 84, 84), 6), images(2, 4, 84, 84)
    *convs, w4, b4, w5, b5 = net.parameters()
    pairs = iter(list(zip(convs[::2], convs[1::2], strict=True)))

    def conv(maps: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(maps, *next(pairs), padding=1)

    maps = obs.float() / 255
    for _ in range(3):
        maps = functional.max_pool2d(conv(maps), 3, 2, 1)
        for _ in range(2):
            maps = maps + conv(conv(maps.relu()).relu())
    assert maps.shape == (2, 32, 11, 11)
    slow = functional.linear(functional.linear(maps.relu().flatten(1), w4, b4).relu(), w5, b5)
    torch.testing.assert_close(net(obs), slow)


@pytest.mark.parametrize(
    ("kind", "in_shape", "params"),
    [
        (NatureCnn, (1, 36, 36), {"hidden": 8}),
        (NatureCnn, (3, 40, 64), {}),
        (ImpalaCnn, (3, 9, 5), {"sections": (4, 8), "hidden": 8}),
        (NatureCnn, (40, 64), {}),
        (NatureCnn, (40, 64, 3), {}),
        (ImpalaCnn, (4, 20, 12, 3), {}),
    ],
)
def test_images_of_other_sizes_and_widths_are_taken(
    kind: type[nn.Module], in_shape: tuple[int, ...], params: dict[str, object]
) -> None:
    assert kind(in_shape, 5, **params)(images(2, *in_shape)).shape == (2, 5)


@pytest.mark.parametrize(
    ("in_shape", "message"),
    [
        ((84,), r"^NatureCnn: expected images \[C, H, W\], found observations \[84\]$"),
        ((4, 20, 20), r"^NatureCnn: expected larger images \[C, H, W\], found \[4, 20, 20\]"),
    ],
)
def test_observations_that_are_no_images_are_refused(in_shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NatureCnn(in_shape, 6)


# Dueling.


def test_dueling_values_are_the_value_plus_each_advantages_difference_from_the_mean() -> None:
    streams = torch.tensor([[10.0, 1.0, 2.0, 6.0], [-1.0, 0.0, 0.0, 0.0]])
    found = DuelingNetwork(nn.Identity())(streams)
    assert found.tolist() == [[8.0, 9.0, 13.0], [-1.0, -1.0, -1.0]]


def test_whatever_is_added_to_all_advantages_the_mean_of_dueling_values_is_the_value() -> None:
    net, obs = Mlp((3,), 5, (8,)), torch.rand(7, 3)
    torch.testing.assert_close(DuelingNetwork(net)(obs).mean(dim=1), net(obs)[:, 0])
    shifted = net(obs) + torch.tensor([0.0, *[3.0] * 4])
    torch.testing.assert_close(DuelingNetwork(nn.Identity())(shifted), DuelingNetwork(net)(obs))


# Critics.


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
    critics, obs, action = Critics(2, encoder, 4, 3, ()), images(5, 2, 3), torch.rand(5, 3)
    features = encoder(obs)
    inputs = torch.cat((features, action), 1)
    torch.testing.assert_close(critics(obs, action)[1], critics.nets[1](inputs)[:, 0])
    critics(obs, action)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


@pytest.mark.parametrize("learned", [True, False])
def test_the_entropy_coefficient_begins_at_its_first_value_and_is_learned_if_it_may(learned: bool) -> None:
    coefficient = EntropyCoef(0.2, learned=learned)
    assert coefficient().item() == pytest.approx(0.2)
    assert coefficient().requires_grad == learned
    assert set(coefficient.state_dict()) == {"log"}
