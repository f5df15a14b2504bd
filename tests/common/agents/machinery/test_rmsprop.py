from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from common.agents.machinery.rmsprop import RMSprop


@pytest.mark.parametrize("lr", [0.5, torch.tensor(0.5)])
@pytest.mark.parametrize("centered", [False, True])
def test_steps_follow_the_formula(lr: float | torch.Tensor, centered: bool) -> None:
    value = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = RMSprop([value], lr, alpha=0.75, eps=0.1, centered=centered)
    expected, square, mean = [1.0, -2.0], [0.0, 0.0], [0.0, 0.0]
    for grads in ([3.0, -1.0], [1.0, 0.0], [-2.0, 5.0]):
        value.grad = torch.tensor(grads)
        optimizer.step()
        for i, grad in enumerate(grads):
            square[i] = 0.75 * square[i] + 0.25 * grad**2
            mean[i] = 0.75 * mean[i] + 0.25 * grad
            variance = square[i] - mean[i] ** 2 if centered else square[i]
            expected[i] -= 0.5 * grad / (math.sqrt(variance) + 0.1)
        assert value.tolist() == pytest.approx(expected, abs=1e-5)


def test_a_constant_gradient_whose_variance_rounds_below_zero_leaves_numbers() -> None:
    value = nn.Parameter(torch.full((1000,), 0.1))
    optimizer = RMSprop([value], 1e-3, alpha=0.95, eps=1e-8, centered=True)
    for _ in range(300):
        value.grad = torch.linspace(0.01, 1, 1000)
        optimizer.step()
    assert value.isfinite().all()


def test_a_parameter_without_a_gradient_stays() -> None:
    still, moved = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = RMSprop([still, moved], 0.5, alpha=0.9, eps=1e-8, centered=False)
    moved.grad = torch.ones(2)
    optimizer.step()
    assert still.tolist() == [1.0, 1.0]
    assert moved[0] < 1.0
