from __future__ import annotations

import numpy as np
import pytest
import torch

from common.agents.losses.advantages import generalized_advantages
from common.data import Array

GAMMA = 0.9


def slow_advantage(t: int, reward: Array, value: Array, ends: Array, terminated: Array, *, gae_lambda: float) -> float:
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
        [slow_advantage(t, *each, gae_lambda=gae_lambda) for t in range(9)]
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
