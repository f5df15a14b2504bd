"""Losses of sequences, against the formulas written out step by step."""

from __future__ import annotations

import math

import pytest
import torch

from common.agents.losses.sequence_losses import (
    masked_loss,
    masked_mean,
    n_step_target,
    rescale,
    sequence_priority,
    undo_rescaling,
)

EPS = 1e-3


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + EPS * x


def inverse_h(x: float) -> float:
    root = (math.sqrt(1 + 4 * EPS * (abs(x) + 1 + EPS)) - 1) / (2 * EPS)
    return math.copysign(root**2 - 1, x)


@pytest.mark.parametrize("x", [-1e6, -300.0, -1.0, -1e-3, 0.0, 0.5, 20.0, 1e5])
def test_values_are_rescaled_as_the_paper_says(x: float) -> None:
    value = torch.tensor(x)
    assert float(rescale(value)) == pytest.approx(h(x), rel=1e-5, abs=1e-6)
    assert float(undo_rescaling(torch.tensor(h(x)))) == pytest.approx(inverse_h(h(x)), rel=1e-4, abs=1e-6)


def test_rescaling_is_undone_without_losing_digits() -> None:
    values = torch.tensor([-1e4, -50.0, -0.01, 0.0, 0.01, 1.0, 475.0, 1e5])
    torch.testing.assert_close(undo_rescaling(rescale(values)), values, rtol=2e-5, atol=1e-5)


def slow_target(
    reward: list[float], terminated: list[bool], mask: list[bool], next_value: list[float], *, discount: float, n: int
) -> list[float]:
    """For each step that is there, the sum over the steps that follow it."""
    steps = sum(mask)
    targets = []
    for t in range(steps):
        total, factor = 0.0, 1.0
        for k in range(t, min(t + n, steps)):
            total += factor * reward[k]
            factor *= discount
            last = k
        targets.append(total + (0.0 if terminated[last] else factor * next_value[last]))
    return targets


@pytest.mark.parametrize("n", [1, 2, 3, 10])
@pytest.mark.parametrize(
    ("terminated", "mask"),
    [
        ([False] * 4, [True] * 4),
        ([False, False, False, True], [True] * 4),
        ([False, True, False, False], [True, True, False, False]),
        ([False] * 4, [True, True, True, False]),  # Cut off.
    ],
)
def test_targets_follow_the_rewards_to_the_end_of_the_sequence_or_episode(
    n: int, terminated: list[bool], mask: list[bool]
) -> None:
    reward, value = [1.0, 2.0, 4.0, 8.0], [3.0, 5.0, 7.0, 11.0]
    columns = (torch.tensor([each]) for each in (reward, terminated, mask, value))
    found = n_step_target(*columns, discount=0.5, n=n)
    assert found[0, : sum(mask)].tolist() == slow_target(reward, terminated, mask, value, discount=0.5, n=n)


def test_the_mean_is_that_of_the_steps_that_count() -> None:
    values, counts = torch.tensor([[1.0, 2.0], [4.0, 100.0]]), torch.tensor([[True, True], [True, False]])
    assert float(masked_mean(values, counts)) == pytest.approx((1 + 2 + 4) / 3)
    assert float(masked_loss(values, counts)) == float(masked_mean(values, counts))
    assert float(masked_loss(values, counts, torch.tensor([0.5, 1.0]))) == pytest.approx((0.5 * (1 + 2) + 4) / 3)
    assert float(masked_mean(values, torch.zeros_like(counts))) == 0
    assert float(masked_mean(torch.tensor([[3.0, math.nan]]), torch.tensor([[True, False]]))) == 3


def test_a_priority_is_mostly_the_greatest_error_of_the_steps_that_count() -> None:
    error = torch.tensor([[1.0, -3.0, 50.0], [2.0, 2.0, 2.0]])
    counts = torch.tensor([[True, True, False], [True, True, True]])
    assert sequence_priority(error, counts, 0.9).tolist() == pytest.approx([0.9 * 3 + 0.1 * 2, 2.0])
    assert sequence_priority(error, counts, 0.0).tolist() == pytest.approx([2.0, 2.0])
