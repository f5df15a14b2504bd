from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from common.agents.training import descend, restore, saved, to_tensors, track
from common.errors import CheckpointError
from tests.common.agents.parts import copies, same


def test_columns_become_tensors_of_the_same_values_and_dtypes() -> None:
    items = {"a": np.array([[1, 2]], np.uint8), "b": np.array([True])}
    tensors = to_tensors(items, torch.device("cpu"))
    assert {name: (t.dtype, t.tolist()) for name, t in tensors.items()} == {
        "a": (torch.uint8, [[1, 2]]),
        "b": (torch.bool, [True]),
    }


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
def test_gradients_above_the_limit_are_clipped_and_their_norm_told(
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


def test_networks_are_restored_by_name_also_where_one_name_begins_another() -> None:
    nets, fresh = ({"net": nn.Linear(2, 1), "net_tgt": nn.Linear(2, 1)} for _ in range(2))
    params = saved(nets)
    assert set(params) == {"net.weight", "net.bias", "net_tgt.weight", "net_tgt.bias"}
    restore("Agent", fresh, params)
    assert all(same(copies(fresh[name]), copies(nets[name])) for name in nets)


@pytest.mark.parametrize("other", [{}, {"net": nn.Linear(3, 1)}, {"another": nn.Linear(2, 1)}])
def test_parameters_that_do_not_fit_are_refused(other: dict[str, nn.Module]) -> None:
    with pytest.raises(CheckpointError, match=r"^Agent: the saved network does not fit this one"):
        restore("Agent", {"net": nn.Linear(2, 1)}, saved(other))
