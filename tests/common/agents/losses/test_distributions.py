from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from common.agents.losses.distributions import categorical_loss, project, quantile_huber_loss
from common.agents.losses.values import td_target

VALUES = st.floats(-100, 100, width=32)
QUANTILES_AND_LEVELS = st.lists(st.tuples(VALUES, st.floats(0, 1, width=32)), min_size=2, max_size=6)
TARGETS = st.lists(VALUES, min_size=2, max_size=6)
KAPPAS = st.sampled_from([0.5, 1.0, 10.0])


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def slow_quantile_huber(prediction: list[float], target: list[float], levels: list[float], kappa: float) -> float:
    """One item's loss as the paper writes it, pair by pair."""
    total = 0.0
    for predicted, level in zip(prediction, levels, strict=True):
        for wanted in target:
            error = wanted - predicted
            huber = error**2 / 2 if abs(error) <= kappa else kappa * (abs(error) - kappa / 2)
            total += abs(level - (error < 0)) * huber / kappa / len(target)
    return total


@given(QUANTILES_AND_LEVELS, TARGETS, KAPPAS)
def test_the_quantile_huber_loss_is_that_of_the_slow_formula(
    quantiles: list[tuple[float, float]], targets: list[float], kappa: float
) -> None:
    """Two items: the second has the numbers of the first in another order."""
    predictions, levels = zip(*quantiles, strict=True)
    found = quantile_huber_loss(
        torch.tensor([predictions, predictions[::-1]]).T,
        torch.tensor([targets, targets[::-1]]).T,
        torch.tensor([levels, levels[::-1]]).T,
        kappa,
    )
    slow = slow_quantile_huber(list(predictions), targets, list(levels), kappa)
    assert found.tolist() == pytest.approx([slow, slow], rel=1e-4, abs=1e-3)


@given(QUANTILES_AND_LEVELS, TARGETS, KAPPAS)
def test_the_gradient_of_the_quantile_huber_loss_is_the_gradient_that_autograd_computes_pair_by_pair(
    quantiles: list[tuple[float, float]], targets: list[float], kappa: float
) -> None:
    predictions, levels = (torch.tensor(values)[:, None] for values in zip(*quantiles, strict=True))
    fast, slow = predictions.clone().requires_grad_(), predictions.clone().requires_grad_()
    loss = quantile_huber_loss(fast, torch.tensor(targets)[:, None], levels, kappa).sum()
    error = torch.tensor(targets)[:, None, None] - slow
    huber = functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=kappa)
    slow_loss = ((levels - (error < 0).float()).abs() * huber / kappa).mean(dim=0).sum()
    found, expected = torch.autograd.grad(loss, fast), torch.autograd.grad(slow_loss, slow)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_target_may_hold_several_returns_of_each_item() -> None:
    returns = torch.tensor([[10.0, 20.0], [30.0, 40.0]])  # [N, B]
    found = td_target(tensor(1.0, 2.0), torch.tensor([False, True]), returns, tensor(0.5, 0.5))
    assert found.tolist() == [[6.0, 2.0], [16.0, 2.0]]


def slow_projection(probability: list[float], values: list[float], atoms: list[float]) -> list[float]:
    """One item's distribution as equation 7 of the paper writes it, atom by atom."""
    width = atoms[1] - atoms[0]
    projected = [0.0] * len(atoms)
    for i, atom in enumerate(atoms):
        for share, value in zip(probability, values, strict=True):
            clipped = min(max(value, atoms[0]), atoms[-1])
            projected[i] += min(max(1 - abs(clipped - atom) / width, 0), 1) * share
    return projected


SHARES = st.lists(st.floats(0.0625, 1, width=32), min_size=5, max_size=5)
RETURNS = st.lists(st.floats(-8, 8, width=32) | st.sampled_from([-4.0, -2.0, 0.0, 2.0, 4.0]), min_size=5, max_size=5)


@given(SHARES, RETURNS, RETURNS)
def test_the_projection_is_that_of_the_slow_formula(
    shares: list[float], some: list[float], others: list[float]
) -> None:
    atoms = [-4.0, -2.0, 0.0, 2.0, 4.0]
    probability = [share / sum(shares) for share in shares]
    found = project(torch.tensor([probability] * 2), torch.tensor([some, others]), torch.tensor(atoms))
    slow = [slow_projection(probability, values, atoms) for values in (some, others)]
    torch.testing.assert_close(found, torch.tensor(slow), rtol=1e-4, atol=1e-5)
    assert found.sum(dim=1).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)


def test_a_distribution_on_the_atoms_is_projected_to_itself() -> None:
    atoms = torch.linspace(-1, 1, 5)
    probability = torch.tensor([[0.1, 0.2, 0.3, 0.0, 0.4]])
    torch.testing.assert_close(project(probability, atoms[None], atoms), probability)


def test_values_beyond_the_atoms_count_for_the_outermost_ones() -> None:
    atoms = torch.tensor([0.0, 1.0, 2.0])
    found = project(torch.tensor([[0.25, 0.25, 0.5]]), torch.tensor([[-7.0, 0.5, 9.0]]), atoms)
    assert found.tolist() == [[0.375, 0.125, 0.5]]


def test_several_critics_share_the_values_of_a_batch() -> None:
    atoms = torch.tensor([0.0, 1.0, 2.0])
    probability = torch.rand(4, 6, 3)
    values = torch.rand(6, 3) * 2
    found = project(probability, values, atoms)
    assert found.shape == (4, 6, 3)
    for critic in range(4):
        torch.testing.assert_close(found[critic], project(probability[critic], values, atoms))


def test_the_categorical_loss_is_the_cross_entropy_of_each_item() -> None:
    predicted = torch.tensor([[0.2, 0.8], [0.5, 0.5]])
    target = torch.tensor([[0.0, 1.0], [0.25, 0.75]])
    found = categorical_loss(predicted.log(), target)
    assert found.tolist() == pytest.approx([-math.log(0.8), -math.log(0.5)])
