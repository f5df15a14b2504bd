from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from common.agents.networks.blocks import Flash, FlashBlock, LayersConfig, ResidualBlock, Simba
from common.agents.networks.layers import Linear, Mlp
from common.data import Array
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
    assert isinstance(validate(LayersConfig, {"architecture": "flash"}).build(3, 2, (8,)), Flash)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, (False, False)),
        ({"normalization": "layer"}, (True, False)),
        ({"normalization": "batch"}, (True, True)),
        ({"architecture": "simba"}, (True, False)),
        ({"architecture": "flash"}, (True, True)),
    ],
)
def test_settings_say_whether_layers_are_normalised_and_by_the_batch(
    params: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    config = validate(LayersConfig, params)
    assert (config.has_norms, config.has_batch_norms) == expected


@pytest.mark.parametrize("architecture", ["simba", "flash"])
def test_blocks_take_no_second_normalisation(architecture: str) -> None:
    with pytest.raises(ConfigError, match=f"normalization: layer does not go with architecture: {architecture}"):
        validate(LayersConfig, {"architecture": architecture, "normalization": "layer"})


def test_weights_of_unit_norm_need_normalised_layers() -> None:
    with pytest.raises(ConfigError, match="unit_weights: true needs layers that are normalised"):
        validate(LayersConfig, {"unit_weights": True})


@pytest.mark.parametrize("training", [True, False])
def test_flashs_network_is_the_slow_formula(training: bool) -> None:
    """In numpy, layer by layer: what it computes while it learns, and what it computes when it acts."""
    net, x = Flash(3, 2, (4, 4)), np.random.default_rng(0).normal(2, 3, (7, 3)).astype(np.float32)
    generator = torch.Generator().manual_seed(0)
    for name, values in net.state_dict().items():  # Gains, biases and statistics that are not 1 and 0.
        if "num_batches" not in name:
            values.add_(0.3 * torch.rand(values.shape, generator=generator))
    state = {name.removeprefix("layers."): values.double().numpy().copy() for name, values in net.state_dict().items()}

    def norm(name: str, rows: Array) -> Array:
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        if training:
            mean, var = rows.mean(axis=0), rows.var(axis=0)
        normed: Array = state[f"{name}.weight"] * (rows - mean) / np.sqrt(var + 1e-5) + state[f"{name}.bias"]
        return normed

    rows = norm("0", x.astype(np.float64)) @ state["1.weight"].T
    for block in ("2.layers", "3.layers"):
        inner = np.maximum(norm(f"{block}.1", rows @ state[f"{block}.0.weight"].T), 0)
        rows = rows + np.maximum(norm(f"{block}.4", inner @ state[f"{block}.3.weight"].T), 0)
    rows = state["4.weight"] * rows / np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + 1e-6)
    slow = rows @ state["5.weight"].T + state["5.bias"]
    found = net.train(training)(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(found, slow, rtol=1e-4, atol=1e-4)


def test_a_flash_block_is_four_times_as_wide_inside_and_begins_orthogonal() -> None:
    wide, first = FlashBlock(6).layers[0], Flash(3, 2, (8,)).get_parameter("layers.1.weight").detach()
    assert isinstance(wide, nn.Linear)
    assert (wide.in_features, wide.out_features) == (6, 24)
    torch.testing.assert_close(first.T @ first, torch.eye(3), atol=1e-5, rtol=0)
