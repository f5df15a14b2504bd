from __future__ import annotations

import pytest
import torch

from common.agents.networks.moments import mean_and_variance


@pytest.mark.parametrize("shape", [(2, 3), (64, 17), (256, 348), (8, 2, 5)])
def test_they_are_those_of_the_slow_formula(shape: tuple[int, ...]) -> None:
    rows = 1000 + torch.randn(shape, generator=torch.Generator().manual_seed(0))
    mean, variance = mean_and_variance(rows)
    exact = rows.double()
    torch.testing.assert_close(mean, exact.mean(dim=0).float())
    torch.testing.assert_close(variance, exact.var(dim=0, correction=0).float())


@pytest.mark.parametrize("value", [0.1, 1e6 / 3, -1e-20])
def test_an_element_that_is_the_same_in_all_rows_has_no_variance(value: float) -> None:
    mean, variance = mean_and_variance(torch.full((300, 4), value))
    assert torch.equal(mean, torch.full((4,), value))
    assert not variance.any()
