from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.agents.losses.distributions import quantile_huber_loss
from common.agents.losses.values import (
    td_target,
)

VALUES = st.floats(-100, 100, width=32)


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


@given(
    st.lists(st.tuples(VALUES, st.floats(0, 1, width=32)), min_size=2, max_size=6),
    st.lists(VALUES, min_size=2, max_size=6),
    st.sampled_from([0.5, 1.0, 10.0]),
)
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


def test_a_target_may_hold_several_returns_of_each_item() -> None:
    returns = torch.tensor([[10.0, 20.0], [30.0, 40.0]])  # [N, B]
    found = td_target(tensor(1.0, 2.0), torch.tensor([False, True]), returns, tensor(0.5, 0.5))
    assert found.tolist() == [[6.0, 2.0], [16.0, 2.0]]
