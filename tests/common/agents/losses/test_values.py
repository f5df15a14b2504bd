from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.agents.losses.values import (
    CriticLoss,
    critic_loss,
    double_q_value,
    least_value,
    smooth_action,
    td_target,
)

VALUES = st.floats(-100, 100, width=32)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values)


@given(st.lists(st.tuples(VALUES, st.booleans(), VALUES), min_size=1, max_size=8), st.floats(0, 1))
def test_the_target_is_the_reward_and_the_discounted_value_unless_terminated(
    rows: list[tuple[float, bool, float]], discount: float
) -> None:
    rewards, terminated, values = zip(*rows, strict=True)
    found = td_target(tensor(*rewards), torch.tensor(terminated), tensor(*values), discount)
    slow = [reward if ended else reward + discount * value for reward, ended, value in rows]
    assert found.tolist() == pytest.approx(slow, rel=1e-5, abs=1e-4)


def test_termination_does_not_bootstrap_and_anything_else_does() -> None:
    found = td_target(tensor(1.0, 1.0), torch.tensor([True, False]), tensor(10.0, 10.0), 0.5)
    assert found.tolist() == [1.0, 6.0]


def test_each_item_may_have_a_discount_of_its_own() -> None:
    found = td_target(
        tensor(1.0, 1.0, 1.0), torch.tensor([False, False, True]), tensor(8.0, 8.0, 8.0), tensor(0.5, 0.25, 0.5)
    )
    assert found.tolist() == [5.0, 3.0, 1.0]


def test_double_q_picks_with_the_online_network_and_values_with_the_target() -> None:
    online = torch.tensor([[1.0, 3.0, 2.0], [9.0, 0.0, 0.0]])
    target = torch.tensor([[10.0, 20.0, 30.0], [-1.0, 5.0, 6.0]])
    assert double_q_value(online, target).tolist() == [20.0, -1.0]


@given(st.lists(st.lists(VALUES, min_size=6, max_size=6), min_size=1, max_size=5))
def test_double_q_is_never_above_the_highest_value(rows: list[list[float]]) -> None:
    both = torch.tensor(rows)
    online, target = both[:, :3], both[:, 3:]
    assert (double_q_value(online, target) <= target.amax(dim=1)).all()
    assert torch.equal(double_q_value(target, target), target.amax(dim=1))


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("mse", (0.25 + 9.0 + 0.0) / 3),
        ("smooth_l1", (0.125 + 2.5 + 0.0) / 3),  # 0.5 e^2 up to |e| = 1, |e| - 0.5 beyond.
    ],
)
def test_the_loss_of_errors_a_half_three_and_nothing(kind: CriticLoss, loss: float) -> None:
    found = critic_loss(kind, tensor(0.5, 2.0, 7.0), tensor(1.0, -1.0, 7.0))
    assert found.shape == ()
    assert float(found) == pytest.approx(loss)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=8))
def test_losses_are_those_of_the_slow_formulas(rows: list[tuple[float, float]]) -> None:
    prediction, target = (tensor(*column) for column in zip(*rows, strict=True))
    errors = [abs(a - b) for a, b in rows]
    huber = math.fsum(0.5 * e * e if e < 1 else e - 0.5 for e in errors) / len(rows)
    squared = math.fsum(e * e for e in errors) / len(rows)
    assert float(critic_loss("smooth_l1", prediction, target)) == pytest.approx(huber, rel=1e-4, abs=1e-4)
    assert float(critic_loss("mse", prediction, target)) == pytest.approx(squared, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("kind", "slope"), [("mse", 200.0), ("smooth_l1", 1.0)])
def test_an_outlier_pulls_with_its_error_or_with_one(kind: CriticLoss, slope: float) -> None:
    prediction = tensor(100.0).requires_grad_()
    (gradient,) = torch.autograd.grad(critic_loss(kind, prediction, tensor(0.0)), prediction)
    assert float(gradient) == pytest.approx(slope)


@pytest.mark.parametrize("kind", ["mse", "smooth_l1"])
def test_weights_multiply_the_loss_of_each_item_once(kind: CriticLoss) -> None:
    prediction, target, weight = tensor(0.5, 2.0, 7.0), tensor(1.0, -1.0, 6.0), tensor(1.0, 0.5, 0.25)
    each = [float(critic_loss(kind, prediction[i], target[i])) for i in range(3)]
    slow = (1.0 * each[0] + 0.5 * each[1] + 0.25 * each[2]) / 3
    assert float(critic_loss(kind, prediction, target, weight)) == pytest.approx(slow)


def test_a_weight_is_that_of_an_item_for_every_critic() -> None:
    prediction, weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), tensor(1.0, 0.5)
    assert float(critic_loss("mse", prediction, torch.zeros(2, 2), weight)) == (1 + 0.5 * 4 + 9 + 0.5 * 16) / 4


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=8))
def test_weights_of_1_change_nothing(rows: list[tuple[float, float]]) -> None:
    prediction, target = (tensor(*column) for column in zip(*rows, strict=True))
    for kind in ("mse", "smooth_l1"):
        weighted = critic_loss(kind, prediction, target, torch.ones(len(rows)))
        torch.testing.assert_close(weighted, critic_loss(kind, prediction, target))


Q = torch.tensor([[1.0, -2.0, 3.0], [0.0, 5.0, 3.5]])


def test_the_least_value_is_that_of_each_column() -> None:
    assert least_value(Q).tolist() == [0.0, -2.0, 3.0]


def test_smoothing_noise_is_clipped_first_and_the_action_then() -> None:
    action, noise = torch.tensor([[0.0, 0.0, 0.9, -0.9]]), torch.tensor([[0.1, -7.0, 7.0, -0.2]])
    torch.testing.assert_close(smooth_action(action, noise, 0.5), torch.tensor([[0.1, -0.5, 1.0, -1.0]]))
