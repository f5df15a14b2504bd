"""Losses of sequences, against the formulas written out step by step."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.agents.losses.sequence_losses import (
    VTrace,
    generalized_advantages,
    masked_loss,
    masked_mean,
    n_step_target,
    rescale,
    sequence_priority,
    undo_rescaling,
    vtrace,
)
from common.data import Array

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


GAMMA = 0.9


def slow_generalized_advantage(
    t: int, reward: Array, value: Array, ends: Array, terminated: Array, *, gae_lambda: float
) -> float:
    """The sum of arXiv:1506.02438, equation 16, term by term; ``value`` has the last observation too."""
    found, weight = 0.0, 1.0
    for s in range(t, len(reward)):
        found += weight * (reward[s] + GAMMA * (0.0 if terminated[s] else value[s + 1]) - value[s])
        if ends[s]:
            break
        weight *= GAMMA * gae_lambda
    return found


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
def test_generalised_advantages_are_those_of_the_paper_and_stop_where_episodes_end(gae_lambda: float) -> None:
    rng = np.random.default_rng(1)
    reward, value = rng.normal(size=(4, 9)), rng.normal(size=(4, 10))
    terminated, truncated = rng.random((4, 9)) < 0.2, rng.random((4, 9)) < 0.2
    ends = terminated | truncated
    goes_on = ~ends
    goes_on[:, -1] = False
    found = generalized_advantages(
        torch.tensor(reward),
        torch.tensor(GAMMA * ~terminated),
        torch.tensor(value[:, :-1]),
        torch.tensor(value[:, 1:]),
        goes_on=torch.tensor(goes_on),
        gae_lambda=gae_lambda,
    )
    expected = [
        [slow_generalized_advantage(t, *each, gae_lambda=gae_lambda) for t in range(9)]
        for each in zip(reward, value, ends, terminated, strict=True)
    ]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def test_what_stands_beyond_an_end_has_no_effect() -> None:
    odd = torch.tensor([[1.0, float("nan")]])
    found = generalized_advantages(
        odd,
        torch.full((1, 2), GAMMA),
        torch.tensor([[2.0, float("inf")]]),
        torch.tensor([[3.0, 4.0]]),
        goes_on=torch.tensor([[False, False]]),
        gae_lambda=0.9,
    )
    assert found[0, 0] == pytest.approx(1 + GAMMA * 3 - 2)


class Sequence(NamedTuple):
    """One sequence of L steps: log pi/mu, reward and how each step ended; the values of L + 1 observations."""

    log_ratio: list[float]
    reward: list[float]
    end: list[str]
    """``goes on``, ``terminated``, ``truncated``, or ``final`` for the row after an end, where no step was taken."""
    value: list[float]


def targets_of(sequence: Sequence, rho_bar: float = 1.0, c_bar: float = 1.0) -> VTrace:
    """What ``vtrace`` gives for one sequence."""
    terminated = torch.tensor([[end == "terminated" for end in sequence.end]])
    return vtrace(
        torch.tensor([sequence.log_ratio]),
        torch.tensor([sequence.reward]),
        GAMMA * (~terminated).float(),
        torch.tensor([sequence.value]),
        torch.tensor([[end != "final" for end in sequence.end]]),
        rho_bar=rho_bar,
        c_bar=c_bar,
    )


def slow_value(s: int, sequence: Sequence, rho_bar: float, c_bar: float) -> float:
    """v_s as the paper writes it: a sum over the steps that follow in the same episode."""
    log_ratio, reward, end, value = sequence
    if s == len(end) or end[s] == "final":
        return value[s]
    total, product = value[s], 1.0
    for t in range(s, len(end)):
        ratio = math.exp(log_ratio[t])
        next_value = 0.0 if end[t] == "terminated" else value[t + 1]
        delta = min(rho_bar, ratio) * (reward[t] + GAMMA * next_value - value[t])
        total += GAMMA ** (t - s) * product * delta
        product *= min(c_bar, ratio)
        if end[t] in ("terminated", "truncated"):
            break
    return total


def slow_advantage(s: int, sequence: Sequence, rho_bar: float, c_bar: float) -> float:
    """``rho_s (r_s + gamma v_(s+1) - V(x_s))``."""
    log_ratio, reward, end, value = sequence
    after = 0.0 if end[s] == "terminated" else slow_value(s + 1, sequence, rho_bar, c_bar)
    return min(rho_bar, math.exp(log_ratio[s])) * (reward[s] + GAMMA * after - value[s])


NUMBER = st.floats(-2, 2, width=32)


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    """Up to eight steps with ends among them; the row after an end is a final one, as a queue of sequences has it."""
    ends: list[str] = []
    length = draw(st.integers(1, 8))
    while len(ends) < length:
        end = draw(st.sampled_from(["goes on", "goes on", "terminated", "truncated"]))
        ends += [end] if end == "goes on" else [end, "final"]
    lists = (draw(st.lists(NUMBER, min_size=length + n, max_size=length + n)) for n in (0, 0, 1))
    log_ratio, reward, value = lists
    return Sequence(log_ratio, reward, ends[:length], value)


@given(sequences(), st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0.5, 1.0]))
def test_the_targets_are_those_of_the_slow_formula_of_the_paper(
    sequence: Sequence, rho_bar: float, c_bar: float
) -> None:
    found = targets_of(sequence, rho_bar, c_bar)
    steps = range(len(sequence.end))
    values = [slow_value(s, sequence, rho_bar, c_bar) for s in steps]
    assert found.values[0].tolist() == pytest.approx(values, rel=1e-4, abs=1e-4)
    advantages = [0.0 if sequence.end[s] == "final" else slow_advantage(s, sequence, rho_bar, c_bar) for s in steps]
    assert found.advantages[0].tolist() == pytest.approx(advantages, rel=1e-4, abs=1e-4)


def test_on_policy_the_targets_are_returns_of_n_steps() -> None:
    found = targets_of(Sequence([0.0] * 3, [1.0, 2.0, 3.0], ["goes on"] * 3, [5.0, 6.0, 7.0, 10.0]))
    last = 3 + GAMMA * 10
    middle = 2 + GAMMA * last
    assert found.values[0].tolist() == pytest.approx([1 + GAMMA * middle, middle, last])
    assert found.advantages[0].tolist() == pytest.approx([1 + GAMMA * middle - 5, middle - 6, last - 7])


def test_a_truncated_episode_bootstraps_from_its_true_last_observation_and_a_terminated_one_does_not() -> None:
    ends = ["truncated", "final", "terminated", "final"]
    found = targets_of(Sequence([0.0] * 4, [1.0, 50.0, 1.0, 50.0], ends, [0.0, 20.0, 0.0, 30.0, 40.0]))
    assert found.values[0].tolist() == pytest.approx([1 + GAMMA * 20, 20.0, 1.0, 30.0])
    assert found.advantages[0].tolist() == pytest.approx([1 + GAMMA * 20, 0.0, 1.0, 0.0])


def test_an_action_that_the_policy_no_longer_takes_changes_nothing() -> None:
    found = targets_of(Sequence([-100.0, 0.0], [9.0, 1.0], ["goes on", "goes on"], [2.0, 3.0, 4.0]))
    assert found.values[0].tolist() == pytest.approx([2.0, 1 + GAMMA * 4])
    assert float(found.advantages[0, 0]) == pytest.approx(0.0, abs=1e-6)


def test_what_a_row_without_a_step_holds_reaches_neither_targets_nor_losses() -> None:
    ends = ["truncated", "final"]
    odd = targets_of(Sequence([0.0, 500.0], [1.0, math.inf], ends, [0.0, 2.0, 3.0]))
    assert odd.values[0].tolist() == pytest.approx([1 + GAMMA * 2, 2.0])
    mask = torch.tensor([[True, False]])
    loss = masked_loss(torch.tensor([[-1.0, -math.inf]]) * odd.advantages, mask)
    assert float(loss) == pytest.approx(-2.8)
