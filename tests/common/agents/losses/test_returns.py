from __future__ import annotations

import numpy as np
import pytest
import torch

from common.agents.losses.returns import least_distribution, least_quantiles


def test_each_item_takes_the_distribution_of_the_critic_whose_mean_is_least() -> None:
    rng = np.random.default_rng(0)
    probability, atoms = rng.dirichlet(np.ones(5), size=(3, 7)), np.linspace(-2, 2, 5)
    found = least_distribution(torch.from_numpy(probability), torch.from_numpy(atoms)).numpy()
    for item in range(7):
        means = [sum(p * z for p, z in zip(probability[n, item], atoms, strict=True)) for n in range(3)]
        np.testing.assert_array_equal(found[item], probability[int(np.argmin(means)), item])


@pytest.mark.parametrize("n_dropped", [0, 1, 3])
def test_the_greatest_quantiles_of_the_mixture_are_left_out(n_dropped: int) -> None:
    quantiles = np.random.default_rng(0).normal(size=(2, 6, 4))
    found = least_quantiles(torch.from_numpy(quantiles), n_dropped).numpy()
    assert found.shape == (2 * (4 - n_dropped), 6)
    for item in range(6):
        mixture = sorted(quantiles[:, item].ravel())
        np.testing.assert_array_equal(sorted(found[:, item]), mixture[: len(mixture) - 2 * n_dropped])
