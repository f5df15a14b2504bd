from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from common.agents.iql import IQL
from common.agents.networks.batch_renorm import BatchRenorm
from common.agents.networks.blocks import (
    LayersConfig,
    Residual,
    make_flash,
    make_flash_block,
    make_simba,
    make_simba_block,
    scale_to_unit,
)
from common.agents.networks.layers import Head, Layers, Linear, Mlp
from common.agents.sac import SAC
from common.data import Array
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.settings import validate
from tests.common.agents.parts import CATEGORICAL, holding


def test_a_residual_block_adds_what_its_layers_make_of_the_normalised_features() -> None:
    block = make_simba_block(6)
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
    net = make_simba(3, 2, (8, 8, 8))
    assert sum(isinstance(part, Residual) for part in net.modules()) == 3
    assert net(torch.zeros(5, 3)).shape == (5, 2)


def test_its_output_is_linear_in_normalised_features() -> None:
    net, x = make_simba(3, 2, (8,)), torch.rand(5, 3)
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
    for architecture, norm in (("simba", nn.LayerNorm), ("flash", nn.RMSNorm)):
        net = validate(LayersConfig, {"architecture": architecture}).build(3, 2, (8,))
        assert isinstance(net, Layers)
        assert [type(layer) for layer in net.layers][-3:] == [Residual, norm, Head]


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
    net, x = make_flash(3, 2, (4, 4)), np.random.default_rng(0).normal(2, 3, (7, 3)).astype(np.float32)
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
    wide, first = make_flash_block(6).layers[0], make_flash(3, 2, (8,)).get_parameter("layers.1.weight").detach()
    assert isinstance(wide, nn.Linear)
    assert (wide.in_features, wide.out_features) == (6, 24)
    torch.testing.assert_close(first.T @ first, torch.eye(3), atol=1e-5, rtol=0)


SPEC = EnvSpec(spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32))


def norms_of_rows(net: nn.Module) -> Array:
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    return np.concatenate([layer.weight.detach().norm(dim=1).numpy() for layer in layers])


def test_weights_are_divided_by_the_norm_of_each_unit_and_gains_by_their_norm_with_biases() -> None:
    parts = (nn.Linear(3, 4), BatchRenorm(4), nn.LayerNorm(4), nn.RMSNorm(4))
    net, generator = nn.Sequential(*parts), torch.Generator().manual_seed(0)
    for parameter in net.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    before = {name: values.detach().double().numpy().copy() for name, values in net.named_parameters()}
    scale_to_unit(net)
    found = {name: values.detach().numpy() for name, values in net.named_parameters()}
    weight = before["0.weight"]
    np.testing.assert_allclose(found["0.weight"], [row / np.sqrt((row**2).sum()) for row in weight], rtol=1e-5)
    np.testing.assert_array_equal(found["0.bias"], before["0.bias"])
    for i in (1, 2):
        gain, bias = before[f"{i}.weight"], before[f"{i}.bias"]
        factor = np.sqrt(4 / (np.square(gain).sum() + np.square(bias).sum()))
        np.testing.assert_allclose(found[f"{i}.weight"], gain * factor, rtol=1e-5)
        np.testing.assert_allclose(found[f"{i}.bias"], bias * factor, rtol=1e-5)
    np.testing.assert_allclose(np.square(found["3.weight"]).sum(), 4, rtol=1e-5)


def test_parameters_that_are_not_trained_stay() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).requires_grad_(False)
    for values in net.parameters():
        values.fill_(2.0)
    scale_to_unit(net)
    assert all((values == 2.0).all() for values in net.parameters())


def test_a_network_begins_with_unit_weights() -> None:
    net = validate(LayersConfig, {"normalization": "layer", "unit_weights": True}).build(3, 2, (8,))
    np.testing.assert_allclose(norms_of_rows(net), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "layers"),
    [(SAC, {"architecture": "flash"}), (IQL, {"architecture": "simba"}), (SAC, {"normalization": "batch"})],
)
def test_each_step_of_each_network_leaves_unit_weights(kind: type[SAC | IQL], layers: dict[str, Any]) -> None:
    """The first of these steps is eager, the second one is traced, and later ones are replayed."""
    critic = CATEGORICAL if kind is SAC else {}
    agent = kind(SPEC, seed=0, units=(8,), batch_size=4, unit_weights=True, update="captured", **layers, **critic)
    nets = {name: net for name, net in agent.nets.items() if name in ("actor", "critics", "value")}
    rows = [(np.full(2, x, np.float32), (x,), x, np.zeros(2, np.float32), False, False) for x in (-0.5, 0.1, 0.7)]
    for _ in range(5):
        for name, net in nets.items():
            np.testing.assert_allclose(norms_of_rows(net), 1, rtol=1e-5, err_msg=name)
        agent.opt(holding(rows, np.float32))
