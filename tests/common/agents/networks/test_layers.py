from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from common.agents.networks.layers import (
    ACTIVATIONS,
    D_MAX,
    EPS,
    MOMENTUM,
    NEVER,
    R_MAX,
    WARM_UP,
    Activation,
    BatchRenorm,
    Head,
    Linear,
    Mlp,
    frozen_statistics,
    mean_and_variance,
)


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


def batch(n: int = 64, mean: float = 3.0, std: float = 2.0) -> torch.Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.normal(mean, std, (n, 4)).astype(np.float32))


def settled(mean: float, var: float) -> BatchRenorm:
    """A layer that has seen enough batches, with these running statistics."""
    norm = BatchRenorm(4)
    norm.running_mean.fill_(mean)
    norm.running_var.fill_(var)
    norm.num_batches_tracked.fill_(WARM_UP)
    return norm


def test_while_it_warms_up_a_batch_is_normalised_by_itself() -> None:
    found = BatchRenorm(4)(batch())
    torch.testing.assert_close(found.mean(dim=0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.var(dim=0, correction=0), torch.ones(4), atol=1e-3, rtol=0)


def test_with_a_warm_up_that_does_not_end_it_is_torchs_batch_normalisation() -> None:
    ours, torchs = BatchRenorm(4, eps=1e-5, warm_up=NEVER), nn.BatchNorm1d(4, eps=1e-5, momentum=MOMENTUM)
    ours.num_batches_tracked.fill_(10 * WARM_UP)
    for seed in range(3):
        x = batch(mean=float(seed))
        torch.testing.assert_close(ours(x), torchs(x))
    torch.testing.assert_close(ours.running_mean, torchs.running_mean)
    torch.testing.assert_close(ours.eval()(x), torchs.eval()(x), rtol=0.01, atol=0.01)  # Its variance is of a sample.


@pytest.mark.parametrize(("mean", "var"), [(2.5, 3.0), (3.0, 100.0), (-30.0, 4.0)])
def test_after_the_warm_up_it_computes_the_slow_formula(mean: float, var: float) -> None:
    x = batch()
    found = settled(mean, var)(x).detach().numpy()
    rows = x.numpy().astype(np.float64)
    std, running = np.sqrt(rows.var(axis=0) + EPS), np.sqrt(var + EPS)
    r = np.clip(std / running, 1 / R_MAX, R_MAX)
    d = np.clip((rows.mean(axis=0) - mean) / running, -D_MAX, D_MAX)
    np.testing.assert_allclose(found, (rows - rows.mean(axis=0)) / std * r + d, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mean", "var"), [(2.5, 3.0), (3.0, 100.0), (-30.0, 4.0)])
def test_gradients_are_those_of_the_slow_formula_without_gradients_through_its_corrections(
    mean: float, var: float
) -> None:
    norm, x, wanted = settled(mean, var), batch().requires_grad_(), torch.randn(64, 4)
    (norm(x) * wanted).sum().backward()

    rows = x.detach().double().requires_grad_()
    weight, bias = torch.ones(4, dtype=torch.double, requires_grad=True), torch.zeros(4, requires_grad=True)
    std, running = (rows.var(dim=0, correction=0) + EPS).sqrt(), (var + EPS) ** 0.5
    r = (std / running).clamp(1 / R_MAX, R_MAX).detach()
    d = ((rows.mean(dim=0) - mean) / running).clamp(-D_MAX, D_MAX).detach()
    normalised = (rows - rows.mean(dim=0)) / std * r + d
    ((normalised * weight + bias) * wanted).sum().backward()
    for found, slow in ((x, rows), (norm.weight, weight), (norm.bias, bias)):
        torch.testing.assert_close(found.grad, slow.grad, check_dtype=False, rtol=1e-4, atol=1e-4)


def test_after_the_warm_up_train_mode_computes_what_eval_mode_does_where_statistics_are_near() -> None:
    norm, x = settled(2.5, 3.0), batch()
    frozen = settled(2.5, 3.0).eval()
    torch.testing.assert_close(norm(x), frozen(x), atol=1e-4, rtol=1e-4)


def test_running_statistics_follow_batches_in_train_mode_and_stay_in_eval_mode() -> None:
    norm, x = BatchRenorm(4), batch()
    norm(x)
    torch.testing.assert_close(norm.running_mean, MOMENTUM * x.mean(dim=0))
    torch.testing.assert_close(norm.running_var, 1 - MOMENTUM + MOMENTUM * x.var(dim=0, correction=0))
    before = [buffer.clone() for buffer in norm.buffers()]
    norm.eval()(x)
    assert all(torch.equal(old, new) for old, new in zip(before, norm.buffers(), strict=True))


def test_in_eval_mode_a_row_depends_on_no_other() -> None:
    norm, x = settled(2.5, 3.0).eval(), batch()
    assert torch.equal(norm(x)[:1], norm(x[:1]))


def test_gain_and_bias_are_learnt() -> None:
    norm = BatchRenorm(4)
    norm(batch()).square().sum().backward()
    assert all(parameter.grad is not None for parameter in norm.parameters())


def test_frozen_statistics_normalise_as_in_eval_mode_and_leave_other_layers_as_they_were() -> None:
    norm, dropout = settled(2.5, 3.0), nn.Dropout(0.5)
    net, x = nn.Sequential(norm, dropout), batch()
    with frozen_statistics(net):
        assert torch.equal(norm(x), settled(2.5, 3.0).eval()(x))
        assert dropout.training
    assert norm.training
    assert norm.num_batches_tracked == WARM_UP
    with frozen_statistics(net.eval()):
        pass
    assert not norm.training


@pytest.mark.parametrize("shape", [(2, 3), (64, 17), (256, 348), (8, 2, 5)])
def test_they_are_those_of_the_slow_formula(shape: tuple[int, ...]) -> None:
    rows = 1000 + torch.randn(shape, generator=torch.Generator().manual_seed(0))
    mean, variance = mean_and_variance(rows)
    exact = rows.double()
    torch.testing.assert_close(mean, exact.mean(dim=0).float())
    torch.testing.assert_close(variance, exact.var(dim=0, correction=0).float())


@pytest.mark.parametrize("value", [0.1, 1e6 / 3, -1e-20])
def test_an_element_that_is_the_same_in_all_rows_has_no_variance(value: float) -> None:
    mean, variance = mean_and_variance(torch.full((300, 4), value))
    assert torch.equal(mean, torch.full((4,), value))
    assert not variance.any()
