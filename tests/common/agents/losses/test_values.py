from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.agents.losses.values import (
    CriticLoss,
    conservative_loss,
    critic_loss,
    double_q_value,
    exp_weight,
    expectile_loss,
    greedy_value,
    imitation_loss,
    least_value,
    mean_squared_distance,
    munchausen_bonus,
    policy_loss,
    scaled_log_policy,
    smooth_action,
    soft_value,
    softmax_weight,
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


def test_the_greedy_value_is_the_highest_of_each_row() -> None:
    assert greedy_value(torch.tensor([[1.0, 3.0, 2.0], [-5.0, -7.0, -6.0]])).tolist() == [3.0, -5.0]


def test_double_q_picks_with_the_online_network_and_values_with_the_target() -> None:
    online = torch.tensor([[1.0, 3.0, 2.0], [9.0, 0.0, 0.0]])
    target = torch.tensor([[10.0, 20.0, 30.0], [-1.0, 5.0, 6.0]])
    assert double_q_value(online, target).tolist() == [20.0, -1.0]


@given(st.lists(st.lists(VALUES, min_size=6, max_size=6), min_size=1, max_size=5))
def test_double_q_is_never_above_the_greedy_value(rows: list[list[float]]) -> None:
    both = torch.tensor(rows)
    online, target = both[:, :3], both[:, 3:]
    assert (double_q_value(online, target) <= greedy_value(target)).all()
    assert torch.equal(double_q_value(target, target), greedy_value(target))


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


def test_the_policy_loss_is_minus_the_first_critics_mean() -> None:
    assert float(policy_loss(Q)) == pytest.approx(-2 / 3)


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
            loss = policy_loss(value[None]) + imitation_loss(value, policy, taken) / 2.5
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


def test_smoothing_noise_is_clipped_first_and_the_action_then() -> None:
    action, noise = torch.tensor([[0.0, 0.0, 0.9, -0.9]]), torch.tensor([[0.1, -7.0, 7.0, -0.2]])
    torch.testing.assert_close(smooth_action(action, noise, 0.5), torch.tensor([[0.1, -0.5, 1.0, -1.0]]))


ACTION_VALUES = st.lists(st.floats(-5, 5, width=32), min_size=3, max_size=3)
TEMPERATURES = st.sampled_from([0.5, 1.0, 4.0])


def slow_policy(q: list[float], temperature: float) -> list[float]:
    shares = [math.exp(value / temperature) for value in q]
    return [share / sum(shares) for share in shares]


@given(ACTION_VALUES, TEMPERATURES)
def test_the_log_policy_is_that_of_the_slow_formula(q: list[float], temperature: float) -> None:
    slow = [temperature * math.log(share) for share in slow_policy(q, temperature)]
    assert scaled_log_policy(torch.tensor([q]), temperature)[0].tolist() == pytest.approx(slow, rel=1e-4, abs=1e-4)


def test_large_values_and_small_temperatures_leave_it_finite() -> None:
    found = scaled_log_policy(torch.tensor([[1000.0, 0.0]]), 0.03)
    torch.testing.assert_close(found, torch.tensor([[0.0, -1000.0]]))


@given(ACTION_VALUES, TEMPERATURES, st.integers(0, 2))
def test_the_bonus_is_the_clipped_log_probability_of_the_action(
    q: list[float], temperature: float, action: int
) -> None:
    found = munchausen_bonus(
        torch.tensor([q, q[::-1]]), torch.tensor([action, 2 - action]), alpha=0.9, temperature=temperature, least=-1.0
    )
    slow = 0.9 * max(temperature * math.log(slow_policy(q, temperature)[action]), -1.0)
    assert found.tolist() == pytest.approx([slow, slow], rel=1e-4, abs=1e-4)


@given(ACTION_VALUES, ACTION_VALUES, ACTION_VALUES, TEMPERATURES)
def test_the_soft_value_is_that_of_the_slow_formula(
    q: list[float], some: list[float], others: list[float], temperature: float
) -> None:
    policy = slow_policy(q, temperature)
    slow = [
        sum(
            share * (value - temperature * math.log(share))
            for share, value in zip(policy, quantiles, strict=True)
            if share
        )
        for quantiles in (some, others)
    ]
    several = soft_value(torch.tensor([[some], [others]]), torch.tensor([q]), temperature)  # [N, B]
    assert several[:, 0].tolist() == pytest.approx(slow, rel=1e-4, abs=1e-4)
    one = soft_value(torch.tensor([some]), torch.tensor([q]), temperature)
    assert one.tolist() == pytest.approx(slow[:1], rel=1e-4, abs=1e-4)


def test_at_a_small_temperature_the_soft_value_is_the_best_one() -> None:
    q = torch.tensor([[1.0, 3.0, 2.0]])
    assert soft_value(q, q, 1e-3).tolist() == pytest.approx([3.0])


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
