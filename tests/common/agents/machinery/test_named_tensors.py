from __future__ import annotations

import pytest
import torch
from torch import nn

from common.agents.machinery.named_tensors import collect_networks, collect_optimizer, load_networks, load_optimizer
from common.agents.machinery.optimization import adam, descend
from common.errors import CheckpointError
from tests.common.agents.parts import copies, same


def test_networks_are_restored_by_name_also_where_one_name_begins_another() -> None:
    nets, fresh = ({"net": nn.Linear(2, 1), "net_tgt": nn.Linear(2, 1)} for _ in range(2))
    params = collect_networks(nets)
    assert set(params) == {"net.weight", "net.bias", "net_tgt.weight", "net_tgt.bias"}
    load_networks("Agent", fresh, params)
    assert all(same(copies(fresh[name]), copies(nets[name])) for name in nets)


@pytest.mark.parametrize("other", [{}, {"net": nn.Linear(3, 1)}, {"another": nn.Linear(2, 1)}])
def test_parameters_that_do_not_fit_are_refused(other: dict[str, nn.Module]) -> None:
    with pytest.raises(CheckpointError, match=r"^Agent: the saved network does not fit this one"):
        load_networks("Agent", {"net": nn.Linear(2, 1)}, collect_networks(other))


def test_an_optimiser_goes_on_with_its_moments_and_its_own_learning_rate() -> None:
    weights = [nn.Parameter(torch.tensor([1.0])) for _ in range(2)]
    old, new = (adam([weight], lr=lr) for weight, lr in zip(weights, (0.5, 0.125), strict=True))
    descend(3 * weights[0].sum(), old)
    load_optimizer(new, {f"adam.{name}": value for name, value in collect_optimizer(old).items()}, "adam.")
    assert set(collect_optimizer(new)) == {"0.step", "0.exp_avg", "0.exp_avg_sq"}
    for name, value in collect_optimizer(old).items():
        assert torch.equal(collect_optimizer(new)[name], value)
    assert new.param_groups[0]["lr"] == 0.125


def test_moments_of_another_shape_are_refused() -> None:
    optimizer = adam([nn.Parameter(torch.zeros(2))], lr=0.5)
    with pytest.raises(ValueError, match=r"adam\.0\.exp_avg: expected \[2\], found \[3\]"):
        load_optimizer(optimizer, {"adam.0.exp_avg": torch.zeros(3)}, "adam.")
