from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.agents.losses.imitation import exp_weight, expectile_loss, softmax_weight

ADVANTAGES = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=8)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values)


@given(ADVANTAGES, st.floats(0.05, 0.95))
def test_the_expectile_loss_is_that_of_the_slow_formula(errors: list[float], tau: float) -> None:
    slow = math.fsum(abs(tau - (1.0 if u < 0 else 0.0)) * u * u for u in errors) / len(errors)
    assert float(expectile_loss(tensor(*errors), tau)) == pytest.approx(slow, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("tau", "expectile"), [(0.5, 5.0), (0.9, 9.0), (0.1, 1.0)])
def test_the_expectile_of_zero_and_ten_is_where_the_loss_is_least(tau: float, expectile: float) -> None:
    """``tau * (10 - e) = (1 - tau) * e``, so ``e = 10 tau``."""
    estimate = torch.tensor(expectile, requires_grad=True)
    expectile_loss(tensor(0.0, 10.0) - estimate, tau).backward()  # type: ignore[no-untyped-call]
    assert estimate.grad is not None
    assert float(estimate.grad) == pytest.approx(0.0, abs=1e-5)


@given(ADVANTAGES, st.floats(0.1, 10))
def test_weights_are_the_bounded_exponentials_of_the_advantage(advantages: list[float], inv_lambda: float) -> None:
    slow = [min(math.exp(inv_lambda * a), 100.0) for a in advantages]
    assert exp_weight(tensor(*advantages), inv_lambda, 100.0).tolist() == pytest.approx(slow, rel=1e-3)


def test_an_advantage_beyond_all_bounds_has_the_greatest_weight() -> None:
    assert exp_weight(tensor(1e6, -1e6), 10.0, 100.0).tolist() == [100.0, 0.0]


@given(ADVANTAGES, st.floats(0.1, 10))
def test_softmax_weights_are_the_exponentials_over_their_mean(advantages: list[float], inv_lambda: float) -> None:
    most = max(advantages)
    exponentials = [math.exp(inv_lambda * (a - most)) for a in advantages]
    slow = [e / (math.fsum(exponentials) / len(exponentials)) for e in exponentials]
    found = softmax_weight(tensor(*advantages), inv_lambda)
    assert found.tolist() == pytest.approx(slow, rel=1e-3, abs=1e-6)
    assert float(found.mean()) == pytest.approx(1.0, rel=1e-4)
