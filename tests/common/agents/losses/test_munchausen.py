from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.agents.losses.munchausen import Munchausen, scaled_log_policy

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
    munchausen = Munchausen(alpha=0.9, temperature=temperature, least=-1.0)
    found = munchausen.bonus(torch.tensor([q, q[::-1]]), torch.tensor([action, 2 - action]))
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
    munchausen = Munchausen(temperature=temperature)
    several = munchausen.value(torch.tensor([[some], [others]]), torch.tensor([q]))  # [N, B]
    assert several[:, 0].tolist() == pytest.approx(slow, rel=1e-4, abs=1e-4)
    one = munchausen.value(torch.tensor([some]), torch.tensor([q]))
    assert one.tolist() == pytest.approx(slow[:1], rel=1e-4, abs=1e-4)


def test_at_a_small_temperature_the_soft_value_is_the_best_one() -> None:
    q = torch.tensor([[1.0, 3.0, 2.0]])
    assert Munchausen(temperature=1e-3).value(q, q).tolist() == pytest.approx([3.0])
