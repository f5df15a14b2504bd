from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.agents.losses.offline_losses import (
    conservative_loss,
    exp_weight,
    expectile_loss,
    imitation_loss,
    mean_squared_distance,
    softmax_weight,
)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize("unit", [0.01, 1.0, 300.0])
def test_with_the_imitation_loss_a_policy_has_the_gradient_of_td3_bc_times_the_size_of_values(unit: float) -> None:
    """The paper's loss is ``mean((pi - a)^2) - 2.5 / mean|Q| * mean(Q)``; here Q is ``unit * sum(pi^3)``."""
    found = []
    for is_paper in (True, False):
        policy = torch.tensor([[0.5, -0.5], [-1.0, 0.2]], requires_grad=True)
        taken, value = torch.tensor([[0.0, 0.5], [0.1, 0.0]]), unit * policy.pow(3).sum(dim=1)
        size = sum(abs(each) for each in value.tolist()) / 2
        if is_paper:
            loss = (size / 2.5) * ((policy - taken).square().mean() - 2.5 / size * value.mean())
        else:
            loss = -value.mean() + imitation_loss(value, policy, taken) / 2.5
        loss.backward()
        assert policy.grad is not None
        found.append((loss.item(), policy.grad))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-5)
    torch.testing.assert_close(found[1][1], found[0][1])


def test_the_distance_of_actions_is_the_mean_of_the_squared_differences() -> None:
    actions, others = torch.tensor([[1.0, 0.0], [0.5, -1.0]]), torch.tensor([[0.0, 0.0], [0.5, 1.0]])
    assert mean_squared_distance(actions, others).tolist() == [0.5, 2.0]


@pytest.mark.parametrize("weight", [None, (2.0, 0.5, 1.0)])
def test_the_conservative_loss_is_that_of_the_slow_formula(weight: tuple[float, ...] | None) -> None:
    rng = np.random.default_rng(0)
    others, q = rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 3))
    slow = [
        (1.0 if weight is None else weight[item])
        * (math.log(sum(math.exp(each) for each in others[critic, :, item])) - q[critic, item])
        for critic in range(2)
        for item in range(3)
    ]
    loss = conservative_loss(torch.tensor(others), torch.tensor(q), None if weight is None else torch.tensor(weight))
    assert float(loss) == pytest.approx(sum(slow) / len(slow))


ADVANTAGES = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=8)


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
