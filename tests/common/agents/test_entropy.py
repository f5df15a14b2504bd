from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.agents.entropy import (
    EntropyCoef,
    discrete_soft_value,
    ent_coef_loss,
    soft_value,
    squash_lstd,
    squashed_gaussian,
)

VALUES = st.floats(-100, 100, width=32)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values)


Q = torch.tensor([[1.0, -2.0, 3.0], [0.0, 5.0, 3.5]])


def test_the_soft_value_subtracts_the_log_probability() -> None:
    log_prob, ent_coef = tensor(1.0, -1.0, 0.0), torch.tensor(0.5)
    assert soft_value(Q, log_prob, ent_coef).tolist() == [-0.5, -1.5, 3.0]


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


def test_a_bent_logarithm_stays_between_its_limits_and_always_has_a_gradient() -> None:
    raw = torch.tensor([-5.0, 0.0, 1.0, 5.0], requires_grad=True)
    found = squash_lstd(raw, -4.0, 0.0)
    slow = [-4 + 4 * (math.tanh(x) + 1) / 2 for x in raw.tolist()]
    assert found.tolist() == pytest.approx(slow, abs=1e-6)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert raw.grad is not None
    assert (raw.grad > 0).all()


def test_the_soft_value_of_discrete_actions_is_the_expectation_over_all_of_them() -> None:
    generator = torch.Generator().manual_seed(0)
    q, logits = torch.randn(3, 5, 4, generator=generator), torch.randn(5, 4, generator=generator)
    log_prob = logits.log_softmax(dim=1)
    slow = []
    for item in range(5):
        policy = log_prob[item].exp().tolist()
        least = [min(q[n, item, a].item() for n in range(3)) for a in range(4)]
        slow.append(sum(p * (value - 0.3 * math.log(p)) for p, value in zip(policy, least, strict=True)))
    ent_coef = torch.tensor(0.3)
    assert discrete_soft_value(q, log_prob, ent_coef).tolist() == pytest.approx(slow, rel=1e-5)


@pytest.mark.parametrize("learned", [True, False])
def test_the_entropy_coefficient_begins_at_its_first_value_and_is_learned_if_it_may(learned: bool) -> None:
    coefficient = EntropyCoef(0.2, learned=learned)
    assert coefficient().item() == pytest.approx(0.2)
    assert coefficient().requires_grad == learned
    assert set(coefficient.state_dict()) == {"log"}
