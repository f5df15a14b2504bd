from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.agents.losses import (
    CriticLoss,
    critic_loss,
    double_q_value,
    ent_coef_loss,
    exp_weight,
    expectile_loss,
    greedy_value,
    least_value,
    policy_loss,
    quantile_huber_loss,
    smooth_action,
    soft_policy_loss,
    soft_value,
    softmax_weight,
    squashed_gaussian,
    td_target,
    weighted_imitation_loss,
)

VALUES = st.floats(-100, 100, width=32)
ADVANTAGES = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=8)


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


# Continuous actions.

Q = torch.tensor([[1.0, -2.0, 3.0], [0.0, 5.0, 3.5]])


def test_the_least_value_is_that_of_each_column() -> None:
    assert least_value(Q).tolist() == [0.0, -2.0, 3.0]


def test_the_policy_loss_is_minus_the_first_critics_mean() -> None:
    assert float(policy_loss(Q)) == pytest.approx(-2 / 3)


def test_smoothing_noise_is_clipped_first_and_the_action_then() -> None:
    action, noise = torch.tensor([[0.0, 0.0, 0.9, -0.9]]), torch.tensor([[0.1, -7.0, 7.0, -0.2]])
    torch.testing.assert_close(smooth_action(action, noise, 0.5), torch.tensor([[0.1, -0.5, 1.0, -1.0]]))


def test_the_soft_value_subtracts_the_log_probability_and_the_loss_is_minus_its_mean() -> None:
    log_prob, ent_coef = tensor(1.0, -1.0, 0.0), torch.tensor(0.5)
    assert soft_value(Q, log_prob, ent_coef).tolist() == [-0.5, -1.5, 3.0]
    assert float(soft_policy_loss(Q, log_prob, ent_coef)) == pytest.approx(-1 / 3)


@given(st.lists(st.tuples(*[st.floats(-2, 2, width=32)] * 3), min_size=1, max_size=6))
def test_the_log_probability_is_that_of_the_transformed_distribution(rows: list[tuple[float, float, float]]) -> None:
    """In double precision and where tanh is not yet 1, so that the distribution's own inverse is good."""
    mean, log_std, noise = (column[:, None].double() for column in torch.tensor(rows).unbind(1))
    noise = noise.clamp(-1, 1) / log_std.exp().clamp(min=1)
    action, found = squashed_gaussian(mean, log_std, noise)
    normal = torch.distributions.Normal(mean, log_std.exp())
    squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])
    slow = squashed.log_prob(action).sum(1)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, slow, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(action, torch.tanh(mean + log_std.exp() * noise))


def test_log_probabilities_of_several_dimensions_add_up() -> None:
    mean, log_std, noise = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
    _, both = squashed_gaussian(mean, log_std, noise)
    each = [squashed_gaussian(mean[:, [i]], log_std[:, [i]], noise[:, [i]])[1] for i in range(2)]
    torch.testing.assert_close(both, each[0] + each[1])


@pytest.mark.parametrize("mean", [-100.0, -20.0, 20.0, 100.0])
def test_where_tanh_is_1_log_probability_and_gradients_stay_finite(mean: float) -> None:
    inputs = [torch.full((1, 1), value, requires_grad=True) for value in (mean, -1.0)]
    action, log_prob = squashed_gaussian(inputs[0], inputs[1], torch.ones(1, 1))
    assert abs(action.item()) == 1.0
    gradients = torch.autograd.grad(log_prob.sum(), inputs)
    assert all(torch.isfinite(value).all() for value in (log_prob, *gradients))
    slow = -0.5 + 1.0 - 0.5 * math.log(2 * math.pi) - 2 * math.log(2) + 2 * abs(mean + math.exp(-1.0))
    assert log_prob.item() == pytest.approx(slow, rel=1e-5)


@pytest.mark.parametrize(("entropy", "slope"), [(-3.0, -2.0), (-1.0, 0.0), (1.0, 2.0)])
def test_the_coefficient_is_pushed_up_below_the_target_entropy_and_down_above(entropy: float, slope: float) -> None:
    log_ent_coef = torch.tensor(0.3, requires_grad=True)
    loss = ent_coef_loss(log_ent_coef, tensor(-entropy, -entropy), target_entropy=-1.0)
    (gradient,) = torch.autograd.grad(loss, log_ent_coef)
    assert float(gradient) == pytest.approx(slope)


# Quantiles.


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


# Imitation.


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


def test_the_imitation_loss_is_minus_the_mean_of_weighted_log_probabilities() -> None:
    assert float(weighted_imitation_loss(tensor(-1.0, -2.0, 3.0), tensor(1.0, 0.5, 2.0))) == pytest.approx(-4 / 3)
