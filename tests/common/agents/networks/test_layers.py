from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from common.agents.networks.batch_renorm import (
    BatchRenorm,
)
from common.agents.networks.layers import ACTIVATIONS, Activation, Head, Linear, Mlp


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


def test_batch_normalisation_comes_before_the_first_layer_and_after_each_activation() -> None:
    net = Mlp((3,), 2, (4, 5), activation="tanh", normalization="batch")
    kinds = [nn.Flatten, BatchRenorm, Linear, nn.Tanh, BatchRenorm, Linear, nn.Tanh, BatchRenorm, Head]
    assert [type(layer) for layer in net.layers] == kinds


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_activation_can_be_learnt_through(activation: Activation) -> None:
    net = Mlp((3,), 2, (4,), activation=activation)
    net(torch.rand(5, 3)).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_a_plain_network_has_the_names_that_it_always_had() -> None:
    assert list(Mlp((3,), 2, (4,)).state_dict()) == [
        "layers.1.weight",
        "layers.1.bias",
        "layers.3.weight",
        "layers.3.bias",
    ]
