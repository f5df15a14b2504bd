from __future__ import annotations

import pytest
import torch
from torch import nn

from common.agents.machinery.optimization import adam, descend, track
from tests.common.agents.parts import copies, same


def test_a_step_changes_the_optimizers_parameters_and_no_others_in_the_graph() -> None:
    mine, other = nn.Linear(2, 2), nn.Linear(2, 1)
    before, untouched = copies(mine), copies(other)
    descend(other(mine(torch.ones(3, 2))).sum(), torch.optim.SGD(mine.parameters(), lr=0.1))
    assert not same(copies(mine), before)
    assert same(copies(other), untouched)
    assert all(parameter.grad is None for parameter in other.parameters())


def test_a_second_step_does_not_add_the_first_steps_gradients() -> None:
    value = nn.Parameter(torch.tensor(5.0))
    optimizer = torch.optim.SGD([value], lr=1.0)
    for _ in range(2):
        descend(3 * value, optimizer)
    assert value.item() == 5.0 - 3.0 - 3.0


@pytest.mark.parametrize(("limit", "norm", "moved"), [(None, None, 30.0), (2.0, 30.0, 2.0), (50.0, 30.0, 30.0)])
def test_gradients_above_the_limit_are_clipped_and_their_norm_is_returned(
    limit: float | None, norm: float | None, moved: float
) -> None:
    value = nn.Parameter(torch.tensor(0.0))
    found = descend(30 * value, torch.optim.SGD([value], lr=1.0), limit)
    assert (found if found is None else float(found)) == norm
    assert value.item() == pytest.approx(-moved)


@pytest.mark.parametrize("tau", [0.005, 0.5, 1.0])
def test_the_target_moves_by_its_share_of_the_way(tau: float) -> None:
    target, online = nn.Linear(3, 2), nn.Linear(3, 2)
    slow = [(1 - tau) * old + tau * new for old, new in zip(copies(target), copies(online), strict=True)]
    kept = copies(online)
    track(target, online, tau)
    torch.testing.assert_close(copies(target), slow)
    assert same(copies(online), kept)
    assert tau < 1 or same(copies(target), kept)


def test_buffers_of_the_target_are_copies_whatever_the_share() -> None:
    target, online = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    online(torch.tensor([[1.0, 5.0], [3.0, 9.0]]))
    track(target, online, 0.005)
    assert target.running_mean is not None
    assert online.running_mean is not None
    assert torch.equal(target.running_mean, online.running_mean)
    assert target.running_mean.tolist() != [0.0, 0.0]


def test_the_first_step_of_adam_has_the_length_of_the_learning_rate() -> None:
    value = nn.Parameter(torch.tensor([1.0, 1.0]))
    descend((value * torch.tensor([3.0, -0.1])).sum(), adam([value], lr=0.25))
    torch.testing.assert_close(value.detach(), torch.tensor([0.75, 1.25]))
