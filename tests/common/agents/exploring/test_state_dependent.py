from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from common.agents.exploring.noise import LaneNoise
from common.agents.exploring.state_dependent import StateDependentActor, StateDependentNoise

CONFIG = StateDependentNoise(features=8, initial_lstd=-0.5)


def make(n_dims: int = 2) -> StateDependentActor:
    torch.manual_seed(0)
    return StateDependentActor(nn.Linear(3, 8), n_dims, CONFIG)


def test_the_policy_is_the_gaussian_that_the_noise_has_over_all_matrices() -> None:
    actor, n = make(), 100_000
    obs = torch.tensor([[0.5, -1.0, 2.0]])
    weights = torch.randn(n, 16, generator=torch.Generator().manual_seed(1))
    mean, log_std = actor(obs).chunk(2, dim=1)
    features = actor.body(obs).tanh()[0]
    matrices = weights.view(n, 8, 2) * actor.lstd.exp()  # The slow formula: one product for each matrix.
    noise = torch.stack([features @ matrix for matrix in matrices[:2000]])
    assert mean.shape == log_std.shape == (1, 2)
    torch.testing.assert_close(noise.std(dim=0), log_std[0].exp(), rtol=0.06, atol=0)
    unit = actor.noise(obs.expand(n, 3), weights)
    torch.testing.assert_close(unit[:2000] * log_std.exp(), noise, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(unit.std(dim=0), torch.ones(2), rtol=0.02, atol=0)


def test_with_the_same_matrix_the_same_observation_has_the_same_noise_and_a_near_one_nearly() -> None:
    actor, weights = make(), torch.randn(1, 16, generator=torch.Generator().manual_seed(1))
    here, again, near = (actor.noise(torch.tensor([[x, 0.2, -0.4]]), weights) for x in (0.3, 0.3, 0.301))
    assert torch.equal(here, again)
    torch.testing.assert_close(here, near, atol=0.02, rtol=0)


def test_the_matrix_changes_slowly() -> None:
    process = LaneNoise(CONFIG.process(), 16, torch.Generator().manual_seed(0), torch.device("cpu"))
    process.begin(np.ones(5000, np.bool_))
    drawn = torch.stack([process.draw(5000) for _ in range(41)]).numpy()
    correlations = [np.corrcoef(drawn[0].ravel(), drawn[k].ravel())[0, 1] for k in (1, 8, 40)]
    assert correlations == pytest.approx([7 / 8, (7 / 8) ** 8, (7 / 8) ** 40], abs=0.01)


def test_the_features_do_not_learn_from_the_standard_deviation() -> None:
    actor = make()
    log_std = actor(torch.ones(4, 3)).chunk(2, dim=1)[1]
    body, lstd = list(actor.body.parameters()), actor.lstd
    *of_body, of_lstd = torch.autograd.grad(log_std.sum(), [*body, lstd], materialize_grads=True)
    assert of_lstd.abs().min() > 0
    assert all(not grad.any() for grad in of_body)
