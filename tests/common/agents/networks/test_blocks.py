from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from common.agents.networks.blocks import LayersConfig, ResidualBlock, Simba
from common.agents.networks.layers import Linear, Mlp
from common.errors import ConfigError
from common.settings import validate


def test_a_residual_block_adds_what_its_layers_make_of_the_normalised_features() -> None:
    block = ResidualBlock(6)
    x = np.random.default_rng(0).normal(2, 3, (5, 6)).astype(np.float32)
    wide, narrow = block.get_submodule("layers.1"), block.get_submodule("layers.3")
    assert isinstance(wide, nn.Linear)
    assert isinstance(narrow, nn.Linear)
    assert (wide.out_features, narrow.out_features) == (24, 6)
    w1, w2 = wide.weight.detach().numpy(), narrow.weight.detach().numpy()
    normed = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    slow = x + np.maximum(normed @ w1.T, 0) @ w2.T
    np.testing.assert_allclose(block(torch.from_numpy(x)).detach().numpy(), slow, rtol=1e-4, atol=1e-4)


def test_simba_has_a_block_for_each_of_the_units() -> None:
    net = Simba(3, 2, (8, 8, 8))
    assert sum(isinstance(part, ResidualBlock) for part in net.modules()) == 3
    assert net(torch.zeros(5, 3)).shape == (5, 2)


def test_its_output_is_linear_in_normalised_features() -> None:
    net, x = Simba(3, 2, (8,)), torch.rand(5, 3)
    head = net.layers[-1]
    assert isinstance(head, nn.Linear)
    torch.testing.assert_close(net(x), functional.linear(net.layers[:-1](x), head.weight, head.bias))


def test_settings_make_the_network_that_they_name() -> None:
    plain = LayersConfig().build(3, 2, (8,))
    assert isinstance(plain, Mlp)
    assert [type(layer) for layer in list(plain.layers)[1:-1]] == [Linear, nn.ReLU]
    fast = validate(LayersConfig, {"activation": "silu", "normalization": "layer"}).build(3, 2, (8,))
    assert isinstance(fast, Mlp)
    assert [type(layer) for layer in list(fast.layers)[1:-1]] == [Linear, nn.LayerNorm, nn.SiLU]
    assert isinstance(validate(LayersConfig, {"architecture": "simba"}).build(3, 2, (8,)), Simba)


@pytest.mark.parametrize(
    ("params", "expected"),
    [({}, False), ({"normalization": "batch"}, True), ({"architecture": "simba"}, True)],
)
def test_settings_say_whether_layers_are_normalised(params: dict[str, Any], expected: bool) -> None:
    assert validate(LayersConfig, params).has_norms is expected


def test_simba_takes_no_second_normalisation() -> None:
    with pytest.raises(ConfigError, match="normalization: layer does not go with architecture: simba"):
        validate(LayersConfig, {"architecture": "simba", "normalization": "layer"})
