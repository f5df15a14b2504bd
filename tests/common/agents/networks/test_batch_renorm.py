from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from common.agents.networks.batch_renorm import (
    D_MAX,
    EPS,
    MOMENTUM,
    NEVER,
    R_MAX,
    WARM_UP,
    BatchRenorm,
    frozen_statistics,
    mean_and_variance,
)


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
